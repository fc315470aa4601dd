"""CPython 3.14 on Linux x86-64: all tests that need no Spark. Cheap: core, mapping, workplace."""

import common


def linux_314() -> None:
    name, python = "linux_314", [common.host()]
    site = common.unpacked(common.wheel(name, "manylinux_2_28_x86_64", "", ""))
    common.imports(name, python, PYTHONPATH=site)
    common.doctor(name, python, PYTHONPATH=site)
    parts = common.folders(["core", "mapping", "workplace"] if common.CHEAP else common.WITHOUT_SPARK)
    workers = "--numprocesses=2"
    common.tests(name, python, [[workers, *part] for part in ([common.TESTS] if common.TESTS else parts)],
                 PYTHONPATH=site)  # fmt: skip


common.main(linux_314)
