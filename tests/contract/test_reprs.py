"""repr of an object whose `__init__` did not run, or raised: a debugger or a traceback with locals may show it."""

from typing import Any

import pytest

from manytail import Batch, Budget, Concurrency, Delivery, Rate, broker
from manytail.executor import KeyedExecutor

CLASSES: list[type] = [
    Batch, Budget, Concurrency, Delivery, KeyedExecutor, Rate, broker.Broker, broker.Channel, broker.Connection,
    broker.BlockingConnection, broker.ConnectionParameters, broker.URLParameters, broker.ReturnedMessage,
]  # fmt: skip


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_is_not_initialised_can_be_shown(cls: Any) -> None:
    assert repr(cls.__new__(cls)) == f"<{cls.__name__}, not initialised>"


def test_an_init_that_raises_leaves_what_can_be_shown() -> None:
    made: list[Any] = []

    class Kept(KeyedExecutor):
        def __new__(cls, *arguments: Any) -> Any:
            made.append(super().__new__(cls))
            return made[0]

    with pytest.raises(ValueError, match="max_workers"):
        Kept(0)
    assert repr(made[0]) == "<Kept, not initialised>"
