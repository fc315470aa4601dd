"""Classes in keys and records: their names, and whether their fields are all of their content."""

from __future__ import annotations

import sys
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

MAIN = ("__main__", "__mp_main__")  # the latter in processes that multiprocessing spawns
_top: WeakKeyDictionary[type, None] = WeakKeyDictionary()  # classes that a reader finds
_foreign: WeakKeyDictionary[type, type | None] = WeakKeyDictionary()  # a base that has content of its own


def name_of_main(main: ModuleType | None) -> str | None:
    """The name of the module that runs as a program. None: it is typed in, as in a notebook."""
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return None if path is None or hasattr(main, "get_ipython") else Path(path).stem


def module_of(kind: Any) -> str:
    """The name of a class's or function's module, the same in every process: that of a program is the name that others
    import it by; of what is typed in it stays `__main__`."""
    module: str = kind.__module__
    return (name_of_main(sys.modules.get(module)) or MAIN[0]) if module in MAIN else module


def class_of(module: str, qualname: str) -> Any:
    """What `module_of` and a qualified name stand for: of the program, if that has the module's name, else of an
    imported module. Not a class: there is none."""
    for main in MAIN:
        found = _in_module(main, qualname) if name_of_main(sys.modules.get(main)) == module else None
        if isinstance(found, type):
            return found
    return _in_module(module, qualname)


def is_at_top(kind: type) -> bool:
    """Whether its module has it under its qualified name, so that a reader finds it."""
    if kind not in _top and _in_module(kind.__module__, kind.__qualname__) is kind:
        _top[kind] = None
    return kind in _top


def _in_module(module: str, qualname: str) -> Any:
    """It runs no `__getattr__` of a module or metaclass."""
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found


def foreign_base(kind: type) -> type | None:
    """The base of a dataclass or NamedTuple that has content besides its fields, as dict, str and Exception have. Such
    bases are written in C, and make their objects themselves."""
    if kind not in _foreign:
        own = {object, tuple if hasattr(kind, "_fields") else object}
        makers = (one for one in kind.__mro__ if isinstance(vars(one).get("__new__"), BuiltinFunctionType))
        _foreign[kind] = next((one for one in makers if one not in own), None)
    return _foreign[kind]


def attributes(value: Any) -> list[str]:
    """The names of an object's attributes, in its dict and in slots."""
    names: list[str] = list(getattr(value, "__dict__", ()))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            own = f"_{kind.__name__.lstrip('_')}{name}" if is_private else name
            if name not in ("__dict__", "__weakref__") and hasattr(value, own):
                names.append(own)
    return names
