"""Private copies of the modules under test and of `world`. A world may set their constants. A fault may be planted in
their source."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from manytail.mapping import _item

FILES = {
    "adaptive": "manytail.mapping._adaptive",
    "admission": "manytail.mapping._admission",
    "breaker": "manytail.mapping._breaker",
    "batches": "manytail.mapping._batches",
    "dedup": "manytail.mapping._dedup",
    "gate": "manytail.mapping._gate",
    "grants": "manytail.mapping._grants",
    "leased": "manytail.mapping._leased",
    "ledger": "manytail.mapping._ledger",
    "scheduler": "manytail.mapping._scheduler",
    "window": "manytail.mapping._window",
    "world": "simulation.world",
}


class ItemBatch(_item.ItemBatch):
    """A batch that has, as an item, what the model calls it."""

    value: Any = None


class Code:
    """The copies that a world runs. Names that one module imports from another are replaced by those of the copies."""

    def __init__(self, changes: dict[str, tuple[str, str]] | None = None) -> None:
        """changes: for a module of FILES, a text that occurs once in its source, and its replacement."""
        changes = changes or {}
        names = set(FILES) - {"world", "ledger", "leased"}
        modules: dict[str, Any] = {name: load(name, changes.get(name)) for name in FILES if name in names}
        self.admission, self.scheduler, self.grants = modules["admission"], modules["scheduler"], modules["grants"]
        self.adaptive, self.window = modules["adaptive"], modules["window"]
        for user in modules.values():
            if "ItemBatch" in vars(user):
                user.ItemBatch = ItemBatch
            for maker in modules.values():  # a module may import names from another
                for name in set(vars(user)) & set(vars(maker)):
                    if getattr(vars(maker)[name], "__module__", None) == maker.__name__:
                        setattr(user, name, vars(maker)[name])


def load(name: str, change: tuple[str, str] | None = None) -> ModuleType:
    """A copy of the module, with that change."""
    module = ModuleType(FILES[name])  # not of its spec: where that is compiled this would be the module itself
    module.__package__ = FILES[name].rpartition(".")[0]
    exec(compiled(name, change), vars(module))
    return module


@cache
def compiled(name: str, change: tuple[str, str] | None) -> CodeType:
    spec = importlib.util.find_spec(FILES[name])
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).with_name(f"{FILES[name].rpartition('.')[2]}.py").read_text(encoding="utf-8")
    return compile(source if change is None else replaced(source, *change), spec.origin, "exec")


def replaced(source: str, old: str, new: str) -> str:
    """Fails if the text does not occur exactly once: the list of mutants is then out of date."""
    found = source.count(old)
    if found != 1:
        raise LookupError(f"{found} times in the source (expected: once): {old!r}")
    return source.replace(old, new)
