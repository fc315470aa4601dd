"""For pyright, which takes this for all of pyarrow: it has no types, and many of its names are made on import."""

from typing import Any

def __getattr__(name: str) -> Any: ...
