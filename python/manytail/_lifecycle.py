"""What all classes of the Python layers do alike: `__init__` runs once, and objects are neither copied nor pickled."""

from __future__ import annotations

from typing import NoReturn


def begin(made: object) -> None:
    """The first statement of `__init__`. RuntimeError: it ran before, or runs in another thread."""
    token = object()
    if made.__dict__.setdefault("_began", token) is not token:  # atomic: of two threads one continues
        raise RuntimeError(f"{type(made).__name__}.__init__ was called before: make another one instead")


def refuse_copy(made: object, why: str, instead: str) -> NoReturn:
    """The body of a `__reduce__`, which pickle, copy.copy and copy.deepcopy call. Raises TypeError."""
    raise TypeError(f"cannot copy or pickle {type(made).__name__!r} object: {why}; {instead} instead")
