"""Set-up of the whole suite: its header line, groups of files for pytest-xdist, and settings that save time."""

import gc
import inspect
import os
import signal
import sys
import warnings
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support.forks import in_child
from support.jvms import SharedClasses

import manytail

GIL = getattr(sys, "_is_gil_enabled", lambda: True)()

# Files of one group run on one xdist worker, because they share what takes seconds to make: builds, a Spark session,
# prepared data. Groups start first, in this order, because they take longest: no worker is left with one at the end.
# Every other file goes to any free worker.
GROUPS = {
    "tests/packaging/test_wheel.py": "dist",
    "tests/packaging/test_check_wheel.py": "dist",
    "tests/packaging/test_thirdparty.py": "dist",
    "tests/demo/": "demo",
    "tests/spark/test_elsewhere.py": "jvm",
    "tests/spark/test_java.py": "jvm",
    "tests/spark/": "spark",
    "tests/bench/": "bench",
    "tests/docs/": "docs",
    "tests/shared/": "shared",
}

# Tests that start processes: here, and wherever a test's function calls one of these.
PROCESSES = ("tests/bench/", "tests/contract/lifecycle/", "tests/docs/")
STARTS = {"run_script", "run_command", "subprocess"}

JVMS = pytest.StashKey[SharedClasses]()


def refuse_stale_modules() -> None:
    """A compiled module that is older than its .py would be tested in place of it. What is installed from a wheel has
    the times of the installation."""
    if Path(manytail.__path__[0]) != Path(__file__).parents[1] / "python" / "manytail":
        return
    for path in Path(manytail.__path__[0]).rglob(f"*{EXTENSION_SUFFIXES[0]}"):
        source = path.with_name(path.name.removesuffix(EXTENSION_SUFFIXES[0]) + ".py")
        if source.exists() and source.stat().st_mtime > path.stat().st_mtime:
            pytest.exit(f"{source.name} has changed since it was compiled: setup.py build_ext --inplace", 3)


def pytest_configure(config: pytest.Config) -> None:
    # pytest-run-parallel has this marker. There are interpreters without that plugin.
    config.addinivalue_line("markers", "thread_unsafe: touches what the whole process shares (signals, fork, threads)")
    refuse_stale_modules()
    # A background job of a script starts with SIGINT ignored, and its child processes inherit that.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[JVMS] = SharedClasses(config.rootpath / "build" / "jvms")
    # A busy machine is no fault of a test.
    settings.register_profile("manytail", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
    settings.load_profile("manytail")


def group(nodeid: str) -> str:
    return next((name for path, name in GROUPS.items() if nodeid.startswith(path)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False  # else xdist begins with the group of the most tests
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the GIL each test runs in four threads at once, but for some that take long and show no more then."""
    first = list(dict.fromkeys(GROUPS.values()))
    items.sort(key=lambda item: first.index(name) if (name := group(item.nodeid)) in first else len(first))
    for item in items:
        function = getattr(item, "function", None)
        code = getattr(function, "__code__", None)
        if item.nodeid.startswith(PROCESSES) or (code and STARTS.intersection(code.co_names)):
            item.add_marker(pytest.mark.thread_unsafe(reason="starts a process"))
        if getattr(function, "is_hypothesis_test", False):
            item.add_marker(pytest.mark.thread_unsafe(reason="hypothesis calls it a hundred times anyway"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests in which allocations fail in a forked child, which has no other threads. Otherwise the thread of
    pytest-xdist that reads what the worker is to do may find no memory, and the worker ends with its work undone.
    Where there is no fork, they run here, which one process without workers allows."""
    if pyfuncitem.get_closest_marker("out_of_memory") is None or not hasattr(os, "fork"):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        in_child(partial(pyfuncitem.obj, **arguments))
    return True


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude pytest's own objects (half a million for the whole suite) from every gc.collect() that a test makes."""
    files = {item.path for item in session.items if item.get_closest_marker("spark")}
    if len(files) > 2 and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        session.config.stash[JVMS].make()
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.config.stash[JVMS].use()


def pytest_unconfigure(config: pytest.Config) -> None:
    if JVMS in config.stash:  # not where configuring has ended the run
        config.stash[JVMS].end()


def pytest_report_header() -> str:
    return f"manytail {manytail.__version__} from {manytail.__file__}, GIL {'on' if GIL else 'off'}"
