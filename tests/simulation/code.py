"""The scheduler, the admission and the world as modules of their own, so that a world may set their
constants, or a fault be planted in their source."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

FILES = {
    "admission": "manytail.mapping._admission",
    "scheduler": "manytail.mapping._scheduler",
    "world": "simulation.world",
}


class Code:
    """What a world runs: its own copy of the scheduler and the admission."""

    def __init__(self, changes: dict[str, tuple[str, str]] | None = None) -> None:
        """changes: for "scheduler" or "admission", a text that stands once in its source, and what takes its place."""
        changes = changes or {}
        self.admission: Any = load("admission", changes.get("admission"))
        self.scheduler: Any = load("scheduler", changes.get("scheduler"))
        self.scheduler.Admission = self.admission.Admission
        self.scheduler.Lane = self.admission.Lane


def load(name: str, change: tuple[str, str] | None = None) -> ModuleType:
    """A copy of the module, with that change."""
    spec = importlib.util.find_spec(FILES[name])
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    if change is not None:
        source = replaced(source, *change)
    module = importlib.util.module_from_spec(spec)
    exec(compile(source, spec.origin, "exec"), vars(module))
    return module


def replaced(source: str, old: str, new: str) -> str:
    """A change whose old text is gone, or no longer the only one, must not stay in the list unseen."""
    found = source.count(old)
    if found != 1:
        raise LookupError(f"{found} times in the source (expected: once): {old!r}")
    return source.replace(old, new)
