"""The suite's header: which build of manytail is under test, and whether this interpreter has its GIL."""

import sys

import manytail


def pytest_report_header() -> str:
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return f"manytail {manytail.__version__} from {manytail.__file__}, GIL {'on' if gil else 'off'}"
