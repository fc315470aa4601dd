"""Which interpreted code runs inside the sections of brokers. Signal handlers run in it, and end a section with what
they raise. So a broker's own code is compiled. What is interpreted is listed here, with the reason why it does no harm.
"""

import gc
import inspect
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

import manytail
from manytail.broker import _runtime, _state

COMPILED = not _state.__file__.endswith(".py")  # an instrumented build leaves it interpreted

HARMLESS = {
    "exceptions.py": "an exception is made before anything is changed, or after everything is",
    "errors.py": "as above",
    "weakref.py": "what is being made is registered for forks, and nobody knows it; or it is freed",
    "_weakrefset.py": "as above",
}


def _is_harmless(frame: FrameType) -> bool:
    """Python only reports what a finalizer, a callback of the garbage collector or a generator that it closes raises.
    The generators are those of tests: ours never run in a section."""
    code = frame.f_code
    closed = code.co_flags & inspect.CO_GENERATOR and not code.co_filename.startswith(manytail.__path__[0])
    freed = bool(closed) or code.co_name in ("__del__", "gc_callback")
    return freed or os.path.basename(code.co_filename) in HARMLESS


@contextmanager
def watched_sections() -> Iterator[None]:
    """Fails at the end if other interpreted code has run in a section of a broker that was made here."""
    if not COMPILED:
        yield
        return
    runtimes: list[Any] = []
    found: set[str] = set()
    thread = threading.local()
    make = _runtime.Runtime.__init__

    def made(runtime: Any) -> None:
        make(runtime)
        runtimes.append(runtime)

    def look(frame: FrameType, event: str, _: object) -> None:
        """`thread.outermost`: the frame that a section, or a finalizer in it, has called."""
        if event == "call" and getattr(thread, "outermost", None) is None:
            if any(runtime.interrupted() for runtime in runtimes):
                thread.outermost = frame
                if not _is_harmless(frame):
                    found.add(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
        elif event == "return" and getattr(thread, "outermost", None) is frame:
            thread.outermost = None

    # What earlier tests left is not collected in a section: callbacks of its weak references would run there.
    gc.collect()
    gc.freeze()  # for good: `unfreeze` would have each later collection look at pytest's objects
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_runtime.Runtime, "__init__", made)
        threading.setprofile(look)
        sys.setprofile(look)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    assert not found, f"interpreted code in a section: {sorted(found)}"
