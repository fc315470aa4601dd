"""Reports what happens inside Spark's worker processes to the test, through a file."""

import os
from pathlib import Path


class Notes:
    """Lines that any process may add. Each line is one write, so lines do not mix. It is pickled with the functions."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def add(self, *words: object) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, (" ".join(str(word) for word in words) + "\n").encode())
        finally:
            os.close(file)

    def read(self) -> list[str]:
        path = Path(self._path)
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
