"""Rows come in chunks that are larger than the window, and go out many at a time."""

from collections import deque
from typing import Any

from manytail._maps.engine.chunks import OUTPUT_BYTES, ChunkScheduler
from manytail._maps.engine.events import InputEnded
from manytail._maps.engine.item import Item
from manytail._maps.engine.lanes import Lanes
from manytail._maps.engine.scheduler import Rules


class Map:
    """Calls end when the test says so, and the test is the consumer."""

    def __init__(self, most: int, sizes: Any = lambda item: 8, **rules: Any) -> None:
        self.scheduler = ChunkScheduler(Rules(**rules), Lanes())
        self.scheduler.gather(most, sizes)
        self.inbox: deque[Any] = deque()
        self.output: deque[Any] = deque()
        self.running: deque[Any] = deque()
        self.started: list[int] = []
        self.reads: float = 0
        self.shown = self.ended = False
        self.now = 0.0

    def step(self, *events: Any) -> None:
        self.inbox.extend(events)
        self.now += 1.0
        while True:
            effects = self.scheduler.step(self.inbox, self.now)
            self.output.extend(effects.emit)
            self.running.extend(effects.start)
            self.started += [item.value for item in effects.start]
            self.reads, self.shown, self.ended = effects.read, effects.shows, effects.ended
            if not self.inbox:
                return

    def chunk(self, values: range) -> list[Item]:
        items = [Item(value) for value in values]
        for item in items:
            self.scheduler.lanes.assign(item)
        return items

    def finish(self, count: int) -> None:
        self.step(*[self.running.popleft() for _ in range(count)])

    def pop(self) -> list[int]:
        rows = self.scheduler.pop(self.output)
        self.step(len(rows))
        return [item.value for item in rows]


def test_a_chunk_comes_in_as_the_window_has_room() -> None:
    run = Map(most=2, workers=1, max_in_flight=3)
    run.step()
    run.step(run.chunk(range(10)), InputEnded(None))
    assert run.started == [0, 1, 2]
    run.finish(2)  # they wait for the consumer, who takes two at a time
    assert run.started == [0, 1, 2, 3, 4]
    run.finish(3)
    assert run.started == [0, 1, 2, 3, 4]
    assert run.pop() == [0, 1]
    assert run.started == list(range(7))
    taken = []
    while run.output or not run.ended:
        run.finish(len(run.running))
        taken += run.pop()
    assert taken == list(range(2, 10))


def test_a_chunk_that_comes_while_rows_wait_is_behind_them() -> None:
    run = Map(most=1, workers=1, max_in_flight=2)
    run.step()
    run.step(run.chunk(range(4)))
    run.step(run.chunk(range(4, 6)))
    taken = []
    for _ in range(6):
        run.finish(1)
        taken += run.pop()
    assert taken == list(range(6))
    assert run.reads == 6 + 2


def test_a_chunk_that_is_read_within_a_step_waits_for_the_next_one() -> None:
    """The reader adds to the inbox at any time, also between the handling of events and the coming in of rows."""
    run = Map(most=1, workers=1, max_in_flight=2)
    tick, late = run.scheduler._tick, [run.chunk(range(4, 6))]

    def tick_late() -> None:
        run.inbox.extend(late)
        late.clear()
        tick()

    run.scheduler._tick = tick_late  # type: ignore[method-assign]
    run.step(run.chunk(range(4)))
    assert run.started == [0, 1]


def test_the_input_ends_when_all_rows_have_come_in() -> None:
    run = Map(most=1, workers=1, max_in_flight=1)
    run.step()
    run.step(run.chunk(range(2)), InputEnded(ValueError()))
    assert not run.scheduler.input_ended
    run.finish(1)
    run.pop()
    assert run.scheduler.input_ended
    assert isinstance(run.scheduler.input_error, ValueError)


def test_the_consumer_looks_when_no_row_is_in_flight() -> None:
    run = Map(most=100, workers=1)
    run.step()
    assert run.shown
    run.step(run.chunk(range(2)))
    assert (run.shown, run.scheduler.idle_since) == (False, None)
    run.finish(1)
    assert not run.shown
    run.finish(1)
    assert run.shown
    assert run.scheduler.idle_since == run.now
    at = run.now
    run.step()
    assert (run.shown, run.scheduler.idle_since) == (False, at)


def test_an_output_has_so_many_bytes() -> None:
    run = Map(most=1_000, sizes=lambda item: OUTPUT_BYTES // 4, workers=1, max_in_flight=2)
    run.step()
    run.step(run.chunk(range(100)))
    while run.running:
        for item in run.running:
            run.scheduler.window.weigh(item, None)
        run.finish(len(run.running))
    assert run.shown
    assert len(run.output) <= 4 + 2  # what has the bytes of an output, and what the window holds
    assert run.pop() == [0, 1, 2, 3]
