"""Classes in idempotency keys and recorded results: their names, and whether their fields are all of their content."""

from __future__ import annotations

import sys
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

MAIN = ("__main__", "__mp_main__")  # the latter in processes that multiprocessing spawns

_foreign: WeakKeyDictionary[type, type | None] = WeakKeyDictionary()


def name_of_main(main: ModuleType | None) -> str | None:
    """The name of the module that runs as a program. None: it is typed in, as in a notebook."""
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return None if path is None or hasattr(main, "get_ipython") else Path(path).stem


def module_of(kind: type) -> str:
    """The name of a class's module, the same in every process. That of a program is the name that others import it by;
    of code that is typed in it stays `__main__`."""
    module = kind.__module__
    return (name_of_main(sys.modules.get(module)) or MAIN[0]) if module in MAIN else module


def found_in(module: str, qualname: str) -> Any:
    """What has that qualified name in an imported module. It runs no `__getattr__` of a module or metaclass."""
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found


def class_of(module: str, qualname: str) -> Any:
    """What `module_of` and a qualified name stand for: of the program, if that has the module's name, else of an
    imported module. Not a class: there is none."""
    for main in MAIN:
        if name_of_main(sys.modules.get(main)) == module and isinstance(found := found_in(main, qualname), type):
            return found
    return found_in(module, qualname)


def foreign_base(kind: type) -> type | None:
    """The base of a dataclass or NamedTuple that has content besides its fields, as dict, str and Exception have. Such
    bases are written in C, and make their objects themselves."""
    if kind not in _foreign:
        own = {object, tuple if hasattr(kind, "_fields") else object}
        makers = [one for one in kind.__mro__ if isinstance(vars(one).get("__new__"), BuiltinFunctionType)]
        _foreign[kind] = next((one for one in makers if one not in own), None)
    return _foreign[kind]


def extras(value: Any, fields: tuple[str, ...]) -> list[str]:
    """Attributes of an object that are none of these fields, in its dict or in slots."""
    slots = [one for kind in type(value).__mro__ for one in _slots(kind) if hasattr(value, one)]
    return [one for one in [*getattr(value, "__dict__", ()), *slots] if one not in fields]


def _slots(kind: type) -> list[str]:
    named = vars(kind).get("__slots__", ())
    names = [named] if isinstance(named, str) else list(named)
    return [_mangled(kind, one) for one in names if one not in ("__dict__", "__weakref__")]


def _mangled(kind: type, name: str) -> str:
    """The attribute behind a name that a class writes in its body."""
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if is_private else name
