"""The suite's header: which build of manytail is under test, and whether this interpreter has its GIL."""

import signal
import sys

import manytail


def pytest_configure() -> None:
    # A job in the background of a script starts with SIGINT ignored, and so would every process that the tests start.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return f"manytail {manytail.__version__} from {manytail.__file__}, GIL {'on' if gil else 'off'}"
