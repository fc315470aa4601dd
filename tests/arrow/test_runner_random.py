"""Random loads with random settings, with threads switching as often as possible: the invariants hold."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.scheduling import Rows, batch_map
from support.threads import switching_often

from manytail import Retry


class Watch:
    """A function that sometimes fails, and checks which calls run and how many rows were emitted."""

    def __init__(self, chance: random.Random, retries: int) -> None:
        self._lock = threading.Lock()
        self._fails = {}
        self._chance = chance
        self._retries = retries
        self.calls: Counter[int] = Counter()
        self.running = 0
        self.running_of: Counter[int] = Counter()
        self.peak = 0
        self.peak_of = 0
        self.peak_in_flight = 0
        self.in_flight: Callable[[], int] = int
        self.starts: dict[int, list[int]] = {}

    def fails(self, number: int) -> int:
        return self._fails.setdefault(number, self._chance.choice([0] * 8 + [1, 9]))

    def __call__(self, row: tuple[int, int, int | None]) -> Any:
        key, number, _ = row
        with self._lock:
            self.calls[number] += 1
            self.running += 1
            self.running_of[key] += 1
            self.peak = max(self.peak, self.running)
            self.peak_in_flight = max(self.peak_in_flight, self.in_flight())
            self.peak_of = max(self.peak_of, self.running_of[key])
            if self.calls[number] == 1:
                self.starts.setdefault(key, []).append(number)
            fails = self.calls[number] <= self.fails(number)
        for _ in range(number % 50):
            pass
        with self._lock:
            self.running -= 1
            self.running_of[key] -= 1
        if fails:
            raise ValueError(number)
        return row

    def expected(self, rows: list[Any]) -> list[Any]:
        return [row for row in rows if self.fails(row[1]) <= self._retries]


@pytest.mark.parametrize("seed", range(20))
def test_invariants_under_random_loads(seed: int) -> None:
    chance = random.Random(seed)
    workers = chance.randrange(1, 7)
    retries = chance.choice([0, 0, 1])
    ordered = chance.choice(["input", "key", "completion"])
    per_key = chance.choice([None, 1, 2])
    prioritised = chance.random() < 0.5
    errors = chance.choice(["column", "drop"])
    window = workers + chance.randrange(20)
    rows = [(chance.randrange(5), number, chance.choice([None, 0, 1, 2**40])) for number in range(400)]
    watch = Watch(chance, retries)
    emitted, size = [], chance.choice([1, 13, 100])

    def source() -> Any:
        for start in range(0, len(rows), size):
            yield Rows(rows[start : start + size], key=lambda row: row[0], priority=lambda row: row[2])

    run = batch_map(
        watch,
        workers=workers,
        max_in_flight=window,
        order=ordered,
        per_key=per_key,
        prioritised=prioritised,
        keyed=True,
        retry=Retry(retries, backoff=0.0001),
        errors=errors,
        timeout=chance.choice([None, 100]),
        batch_rows=chance.choice([1, 7, 1_000]),
    )
    watch.in_flight = lambda: run.scheduler.window.in_flight
    with switching_often():
        for output in run.run(source()):
            emitted.extend(output)
    _check(
        watch,
        rows,
        emitted,
        run,
        order=ordered,
        workers=workers,
        per_key=per_key,
        prioritised=prioritised,
        errors=errors,
    )


def _check(watch: Watch, rows: list[Any], emitted: list[Any], run: Any, **settings: Any) -> None:
    good = watch.expected(rows)
    values = [call.result for call in emitted if call.error is None]
    assert sorted(values, key=lambda row: row[1]) == good
    assert run.scheduler.dropped == (len(rows) - len(good) if settings["errors"] == "drop" else 0)
    assert len(emitted) + run.scheduler.dropped == len(rows)
    assert watch.peak <= settings["workers"]
    assert 1 <= watch.peak_in_flight <= run.options.max_in_flight
    if settings["per_key"]:
        assert watch.peak_of <= settings["per_key"]
    if settings["order"] == "input":
        assert values == good
    if settings["order"] == "key":
        for key in range(5):
            assert [row for row in values if row[0] == key] == [row for row in good if row[0] == key]
            if settings["per_key"] == 1:
                assert watch.starts[key] == sorted(watch.starts[key])
    assert watch.calls == Counter({row[1]: min(watch.fails(row[1]), run.options.retry.times) + 1 for row in rows})
    assert run.scheduler.window.in_flight == 0
    assert all(
        lane.assigned == lane.emitted and not lane.held and not lane.waiting
        for lane in run.scheduler.admission._lanes.values()
    )
    assert run.scheduler.ready.stats().qsize == 0
