# pandas has no complete types of its own, and pyright guesses wrong about what its methods return.
from typing import Any

def __getattr__(name: str) -> Any: ...
