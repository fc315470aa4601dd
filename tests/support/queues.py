"""Small helpers on multi-queues for tests."""
import _thread
import functools
import operator
import time
from array import array
from collections.abc import Iterator
from queue import Empty
from typing import Any


def as_list(items: Any) -> list[Any]:
    """What a bulk get returned, as a plain list. It is a list or, from an IndexMultiQueue, a numpy array."""
    return items if isinstance(items, list) else items.tolist()


def get_many_into(queue: Any, n: int, **wait: Any) -> list[Any]:
    into = array("q", bytes(8 * n))
    return into[: queue.get_many_into(into, **wait)].tolist()


def drain(queue: Any) -> list[Any]:
    """All items that `get` returns without waiting, in their order."""
    items = []
    while True:
        try:
            items.append(queue.get_nowait())
        except Empty:
            return items


def one_then(error: BaseException) -> Iterator[int]:
    """An iterable that ends with an exception after its first item."""
    yield 1
    raise error


class Sealed(KeyboardInterrupt):
    """An interruption that refuses attributes, so that nothing can be said in it."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot assign {name}")


class SealedError(ValueError):
    """The same for an error."""

    __setattr__ = Sealed.__setattr__  # type: ignore[assignment]


def with_interrupt_pending(call: Any, *args: Any, **kwargs: Any) -> None:
    """Call with a Ctrl-C that came just before. `map` and `operator.call` run no bytecode between the two calls, so the
    interpreter cannot raise it earlier: the call itself has to notice."""
    list(map(operator.call, (_thread.interrupt_main, functools.partial(call, *args, **kwargs))))


def keeping_the_gil(seconds: float, call: Any) -> None:
    """Let no other thread run for so many seconds (with a GIL), then call: as after a long C call. The timeout of a
    shorter wait passes in that time, but the waiter cannot leave before `call` has run."""
    began = time.perf_counter()
    sum(range(1_000_000))
    rate = 1_000_000 / (time.perf_counter() - began)
    list(map(operator.call, (functools.partial(sum, range(int(seconds * rate))), call)))
