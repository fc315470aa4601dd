"""What manytail asks of the interpreter, before an extension module is loaded.

It refuses to be imported in a subinterpreter.

The extension modules keep process-wide state, such as the registry of queues that fork needs. They belong to the main
interpreter. Python alone would refuse whichever interpreter imports them second: after an import in a subinterpreter,
the main interpreter could not import manytail.
"""

from __future__ import annotations

import _thread
import importlib
import sys
import warnings


def in_main_interpreter() -> bool:
    """Whether the running interpreter is the one that the process began with. Its number is 0."""
    # Both modules are CPython's own, and Python offers no other way. Another implementation has one interpreter.
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    try:
        current = importlib.import_module(name).get_current()
    except ImportError:
        return True
    return int(current[0] if isinstance(current, tuple) else current) == 0


if not in_main_interpreter():
    raise ImportError(
        "manytail cannot be imported in a subinterpreter: use it in the main interpreter, or in a process of its own"
    )


def patched_by() -> str | None:
    """The package that has put its own threads in the place of Python's: gevent, eventlet. None: none has."""
    module = _thread.start_new_thread.__module__
    return None if module == "_thread" else module.partition(".")[0]


def _warn_if_patched() -> None:
    package = patched_by()
    if package is not None:
        warnings.warn(
            f"{package} has patched Python's threads, and manytail waits in real ones: a call that waits stops all "
            "greenlets of its thread, and hangs if it waits for one of them. Patch without threads "
            "(gevent.monkey.patch_all(thread=False)), or call manytail from a real thread "
            "(gevent.get_hub().threadpool.apply)",
            RuntimeWarning,
            stacklevel=4,  # the import of the user; the machinery of imports is not counted
        )


_warn_if_patched()
