"""The published list, with which the benchmark compares EntryQueue, is correct: the checker of tests/linear explains
its histories by the specification of an EntryQueue."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from linear.entry_plans import EntryPlan, bind, plain
from linear.entry_spec import EntrySpec, Subscriber
from linear.history import Call, record
from linear.plan import Listed
from support.counts import count
from support.threads import switching_often

HISTORIES = count(150, 3_000, "MANYTAIL_HISTORIES")
pytestmark = pytest.mark.thread_unsafe(reason="builds once, changes the switch interval and starts threads")


@pytest.fixture(scope="module")
def published() -> Any:
    """The module of the list."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    try:
        import published as rows

        return rows.module()
    except rows.Unavailable as reason:
        pytest.skip(str(reason))
    finally:
        sys.path.pop(0)


class WithOptions:
    """A list whose put takes the options that the plans give."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def put(self, item: Any, block: bool, priority: int, group: Any) -> None:
        self.made.put(item)


class PublishedPlan(EntryPlan):
    weights: ClassVar[dict[str, int]] = {"put": 8, "get": 12, "ack": 5, "release": 8}
    module: ClassVar[Any]
    locked: ClassVar[bool]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lists[0].pop()  # the shutdown, which the list does not have

    def draw(self) -> None:
        self.subscribers = [Subscriber(name) for name in "abc"[: self.rng.randint(1, 3)]]
        self.deliveries: list[Any] = []
        self.spec = EntrySpec(self.subscribers)

    def call(self) -> Listed:
        name, arguments, _ = super().call()
        return name, arguments, 0

    def history(self) -> list[Call]:
        made = self.module.QpidList(1_000, len(self.subscribers), locked=self.locked)
        subscriptions = {each.name: made.subscribe() for each in self.subscribers}
        handles: dict[Any, Any] = {}
        bound = [
            [bind(WithOptions(made), subscriptions, handles, *call) for call in calls] for calls in self.lists
        ]
        return [replace(call, result=plain(call)) for call in record(bound)]


@pytest.fixture(params=[False, True], ids=["lockless", "locked"])
def plan(published: Any, request: pytest.FixtureRequest) -> Any:
    PublishedPlan.module, PublishedPlan.locked = published, request.param
    with switching_often():
        yield PublishedPlan


@pytest.mark.parametrize(("threads", "calls"), [(2, 8), (3, 5), (4, 4)])
def test_histories(plan: Any, threads: int, calls: int) -> None:
    for seed in range(HISTORIES):
        plan(seed, threads=threads, calls=calls, waits=False).check()


def test_longer_histories(plan: Any) -> None:
    for seed in range(HISTORIES // 6):
        plan(seed, threads=3, calls=25, waits=False).check()


@pytest.mark.parametrize("locked", [False, True])
def test_what_is_released_comes_again_at_its_place_and_nodes_are_used_again(published: Any, locked: bool) -> None:
    made = published.QpidList(600, 2, locked=locked)
    one, other = made.subscribe(), made.subscribe()
    for _ in range(3):
        for number in range(500):
            made.put(number)
        held = [(one if number % 2 else other).get() for number in range(500)]
        assert [delivery.item for delivery in held] == list(range(500))
        assert [held[number].release() for number in (300, 7, 450)] == [True] * 3
        assert held[7].ack() is False
        again = [one.get(), other.get(), one.get()]
        assert [delivery.item for delivery in again] == [7, 300, 450]
        assert sum(delivery.ack() for delivery in held) == 497  # in the middle: they are unlinked by a walk
        assert [delivery.ack() for delivery in again] == [True] * 3
        with pytest.raises(published.Empty):
            other.get(False)
        made.reset()
    assert held[0].ack() is False
