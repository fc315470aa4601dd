"""A weak reference to an object that is being freed is dead before user code can run.

Cython calls `__dealloc__` with a reference to the object, so a weak reference that is still alive hands it out: to the
finalizer of an item, or to another thread. When `__dealloc__` returns, the object is freed all the same. Cython clears
the weak references before the `__dealloc__` of the class that declares `__weakref__`, but a subclass's `__dealloc__`
runs before both. So a class with a `__dealloc__` has no base that declares `__weakref__`.

A tp_dealloc of ours in place of Cython's has no such reference, and releases nothing of the user's before that runs.
tests/contract/lifecycle asks every public class."""

import re
from pathlib import Path

import pytest

PYX = Path(__file__).parents[2] / "pyx" / "manytail"
CLASS = re.compile(r"^(?:cdef )?class (\w+)(?:\((\w*)\))?:\n((?:(?: +.*)?\n)*)", re.MULTILINE)
# Types with a tp_dealloc of ours: what it does before Cython's.
OWN_DEALLOC = {"Entry": "frees the entry's structure, which has no reference to an object"}


def classes(texts: list[str]) -> dict[str, tuple[str, bool, bool]]:
    """Name of each class: its base, whether it declares `__weakref__`, and whether it has a `__dealloc__`. A class may
    stand in a .pxd and in a .pyx."""
    found: dict[str, tuple[str, bool, bool]] = {}
    for text in texts:
        for name, base, body in CLASS.findall(text):
            before = found.get(name, ("", False, False))
            weak, freed = "cdef object __weakref__" in body, "def __dealloc__(" in body
            found[name] = base or before[0], weak or before[1], freed or before[2]
    return found


def revivable(found: dict[str, tuple[str, bool, bool]]) -> list[str]:
    """Classes whose weak references are alive in their `__dealloc__`."""
    return sorted(
        name for name, (base, _, freed) in found.items() if freed and any(found[it][1] for it in bases(found, base))
    )


def bases(found: dict[str, tuple[str, bool, bool]], base: str) -> list[str]:
    return [base, *bases(found, found[base][0])] if base in found else []


def core() -> list[str]:
    return [path.read_text() for path in sorted(PYX.glob("*.p[yx][xd]"))]


def test_weak_references_are_dead_in_each_dealloc():
    found = classes(core())
    assert {"Root", "Fifo", "EntryQueue", "Subscriber", "Browser"} <= set(found)
    assert revivable(found) == []


def test_tp_dealloc_of_our_own_is_known():
    patched = re.findall(r"mt_patch_dealloc\(<PyTypeObject \*>(\w+),", "\n".join(core()))
    assert patched == list(OWN_DEALLOC)


OWNER = "cdef class A:\n    cdef object __weakref__\n"
FREED = "    def __dealloc__(self):\n        f()\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OWNER + FREED, []),
        (OWNER + "\ncdef class B(A):\n    cdef int n\n", []),
        (OWNER + "\ncdef class B(A):\n" + FREED, ["B"]),
        (OWNER + "cdef class B(A):\n    cdef int n\ncdef class C(B)\n\ncdef class C(B):\n\n" + FREED, ["C"]),
    ],
)
def test_what_is_found(text, expected):
    assert revivable(classes([text])) == expected
