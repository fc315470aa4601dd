"""CPython 3.14 on Linux x86-64: all tests that need no Spark. Cheap: core's essentials, mapping, workplace."""

import common


def linux_314() -> None:
    name, python = "linux_314", [common.host()]
    site = common.unpacked(common.wheel(name, "manylinux_2_28_x86_64", "", ""))
    # The other interpreters run these tests in the debug mode of asyncio too, where they take seven times as long.
    cheap = [[*common.ESSENTIALS, "tests/mapping", "tests/workplace", "-k", "not debug"]]
    parts = cheap if common.CHEAP else common.folders(common.WITHOUT_SPARK)
    common.tried(name, python, parts, ["--numprocesses=2"], PYTHONPATH=site)


common.main(linux_314)
