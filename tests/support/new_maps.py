"""Puts the names of `manytail._maps` in the place of the same names of `manytail.mapping` and `manytail`: for runs of
the old package's tests against the new one.

    PYTHONPATH=tests .venv/bin/python -m pytest -p support.new_maps tests/mapping tests/arrow

What the new package lacks stays the old one's. An option that it does not know yet raises NotImplementedError. What
tests ask of the old runner, as far as the driver has it under another name, is mapped."""

import sys

import manytail
from manytail import _maps, mapping
from manytail._maps import frames
from manytail._maps.callers import Intake
from manytail._maps.runners.driver import Driver

for name in _maps.__all__:
    setattr(mapping, name, getattr(_maps, name))
    setattr(manytail, name, getattr(_maps, name))
sys.modules["manytail.mapping.frames"] = mapping.frames = frames  # type: ignore[attr-defined]
for kind in (_maps.Results, _maps.AsyncResults):
    kind._runner = property(lambda self: self._driver)  # type: ignore[attr-defined]
_maps.Shared._store = _maps.Shared.store  # type: ignore[attr-defined]
Driver.stopping = property(lambda self: self.halted)  # type: ignore[attr-defined]
for kind in (_maps.Caller, _maps.AsyncCaller):
    kind._runner = property(lambda self: self._driver)  # type: ignore[attr-defined]
Intake._handed = property(lambda self: self.line)  # type: ignore[attr-defined]
Intake._ending = property(lambda self: self.finishing)  # type: ignore[attr-defined]
