"""Refuses to be imported in a subinterpreter, before an extension module is loaded there.

The extension modules keep process-wide state, such as the registry of queues that fork needs. They belong to the main
interpreter. Python alone would refuse whichever interpreter imports them second: after an import in a subinterpreter,
the main interpreter could not import manytail.
"""

from __future__ import annotations

import importlib
import sys


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
