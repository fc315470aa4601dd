"""Which item of a lane runs: none of an addressee that is gone, and who waits for its end is woken."""

import inspect
from collections import deque
from types import MemberDescriptorType
from typing import Any

import pytest
from support.counts import count_of_races
from support.threads import DEADLINE, Threads, switching_often

from manytail._sections import RunningItem
from manytail._sync import Event
from manytail.broker import _runtime, channel


class Addressee:
    """As in manytail.broker._runtime."""

    def __init__(self) -> None:
        self.gone = False
        self.auto_ack = False
        self.seen = 0
        self.buffer: deque[Any] = deque()


def test_an_item_of_an_addressee_that_is_gone_does_not_begin() -> None:
    running, addressee = RunningItem(), Addressee()
    assert running.begin((addressee, 1))
    running.end()
    addressee.gone = True
    assert not running.begin((addressee, 2))
    assert running.seen(addressee) == 1


def test_an_item_that_needs_no_ack_leaves_the_buffer_when_it_begins() -> None:
    running, addressee = RunningItem(), Addressee()
    addressee.auto_ack = True
    first, second = (addressee, 1), (addressee, 2)
    addressee.buffer += [first, second]
    assert running.begin(first)
    assert list(addressee.buffer) == [second]


def test_an_addressee_is_asked_before_the_item_begins_and_its_buffer_runs_no_code() -> None:
    """Under the lock of the item that would wait for itself without the GIL."""
    running, asked = RunningItem(), list[bool]()

    class Buffer(deque[Any]):
        def popleft(self) -> Any:
            asked.append(running.runs())
            return super().popleft()

    class Asking:
        gone, seen, items = False, 0, Buffer()

        @property
        def auto_ack(self) -> bool:
            asked.append(running.runs())
            return True

        @property
        def buffer(self) -> Buffer:
            asked.append(running.runs())
            return self.items

    addressee = Asking()
    addressee.items.append((addressee, 1))
    assert running.begin(addressee.items[0])
    assert not addressee.items
    assert asked == [False, False]


@pytest.mark.parametrize("kind", [_runtime.Addressee, channel._State, channel.Subscriber])
def test_what_is_read_and_set_under_the_lock_runs_no_code(kind: type) -> None:
    found = [inspect.getattr_static(kind, name) for name in ("gone", "seen")]
    assert all(isinstance(it, MemberDescriptorType | int) for it in found)
    accesses = ("__getattribute__", "__setattr__")
    overridden = [name for name in accesses if getattr(kind, name) is not getattr(object, name)]
    assert not overridden
    assert not hasattr(kind, "__getattr__")


def test_the_end_of_an_item_returns_the_events_of_those_who_watch_its_addressee() -> None:
    running, addressee, other = RunningItem(), Addressee(), Addressee()
    events = early, of_another, first, of_any, late = [Event() for _ in range(5)]
    assert not running.watch(addressee, early)
    running.begin((addressee, 1))
    assert not running.watch(other, of_another)
    assert running.watch(addressee, first)
    assert running.watch(None, of_any)
    running.end()
    assert not running.watch(None, late)
    assert [event.is_set() for event in events] == [False, False, True, True, False]


def test_the_head_of_a_batch_is_removed_whether_or_not_it_begins() -> None:
    running, addressee, gone = RunningItem(), Addressee(), Addressee()
    gone.gone = True
    batch = deque([(addressee, 1), (gone, 2), (addressee, 3)])
    assert running.begin(batch[0], batch)
    assert not running.begin(batch[0], batch)
    assert [number for _, number in batch] == [3]


def test_nothing_begins_after_an_addressee_was_found_gone_and_idle() -> None:
    """A stress run: who makes it gone waits for the item that runs, and then sees the last number."""
    with switching_often():
        for _ in range(count_of_races(50, 2_000)):
            running, addressee, begun = RunningItem(), Addressee(), Event()

            def serve(running: RunningItem = running, addressee: Addressee = addressee, begun: Event = begun) -> None:
                number = 0
                while running.begin((addressee, number := number + 1)):
                    begun.set()
                    running.end()

            with Threads() as threads:
                threads.start(serve)
                assert begun.wait(DEADLINE)
                addressee.gone = True
                ended = Event()
                if running.watch(addressee, ended):
                    assert ended.wait(DEADLINE)
                seen = running.seen(addressee)
            assert running.seen(addressee) == seen
