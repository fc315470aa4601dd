"""Imports every module of the installed manytail, and says how many there are: the first test of a wheel.

A module that needs an optional dependency which is not installed is named; any other error is raised."""
import importlib
import pkgutil
import re
import sys
from importlib.metadata import requires

import manytail

OPTIONAL = {re.match(r"[\w-]+", requirement)[0] for requirement in requires("manytail")} | {"py4j"}  # of PySpark


def main() -> int:
    imported, left_out = 0, {}
    for module in pkgutil.walk_packages(manytail.__path__, "manytail.", onerror=lambda name: None):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
            imported += 1
        except ModuleNotFoundError as error:
            needed = (error.name or "").partition(".")[0]
            if needed not in OPTIONAL:
                raise
            left_out.setdefault(needed, []).append(module.name)
    without = "".join(f"; {' '.join(names)}: no {needed}" for needed, names in left_out.items())
    print(f"{imported} modules imported from {manytail.__path__[0]}{without}")
    return 0 if imported else 1


if __name__ == "__main__":
    sys.exit(main())
