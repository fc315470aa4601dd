"""For pyright, which takes this for all of pyarrow.compute: it makes its functions when it is imported."""

from typing import Any

def __getattr__(name: str) -> Any: ...
