"""Puts the names of `manytail._maps` in the place of the same names of `manytail.mapping` and `manytail`: for runs of
the old package's tests against the new one.

    PYTHONPATH=tests .venv/bin/python -m pytest -p support.new_maps tests/mapping

What the new package lacks stays the old one's. An option that it does not know yet raises NotImplementedError."""

import manytail
from manytail import _maps, mapping

for name in _maps.__all__:
    setattr(mapping, name, getattr(_maps, name))
    setattr(manytail, name, getattr(_maps, name))
