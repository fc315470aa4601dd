"""CPython 3.14 on Linux x86-64: all tests that need no Spark. Cheap: core, mapping, workplace."""

import common


def linux_314() -> None:
    name, python = "linux_314", [common.host()]
    site = common.unpacked(common.wheel(name, "manylinux_2_28_x86_64", "", ""))
    parts = common.folders(["core", "mapping", "workplace"] if common.CHEAP else common.WITHOUT_SPARK)
    common.tried(name, python, parts, ["--numprocesses=2"], PYTHONPATH=site)


common.main(linux_314)
