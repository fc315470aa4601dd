"""For pyright, which takes this for the whole of pyarrow: it has no types, and makes many of its names when it is imported."""

from typing import Any

def __getattr__(name: str) -> Any: ...
