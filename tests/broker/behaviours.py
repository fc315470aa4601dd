"""`behaviour`: which numbered behaviours of docs/design/broker.md a test asserts, and for which servers that holds."""

from collections.abc import Callable
from typing import Any


def behaviour(*numbers: int, since: str = "3.8", until: str = "999") -> Callable[[Any], Any]:
    """`since`: the first server version that the test holds for. `until`: the first later version that differs."""

    def mark(test: Any) -> Any:
        test.behaviours = numbers
        test.server_versions = tuple(tuple(int(part) for part in version.split(".")) for version in (since, until))
        return test

    return mark
