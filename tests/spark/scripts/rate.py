"""Eight tasks on four executors share one rate on PostgreSQL, and a worker is killed; test_elsewhere.py runs it.

Arguments: the URL of the database, and a directory for notes. Each worker notes its calls, and the leases that it got:
the slots of a lease are 1 / rate apart, so the leases say which slots there were in all. A call that comes too late for
its slot returns it.
"""

import os
import signal
import sys
import time
from pathlib import Path

from sessions import session

from manytail import Rate, Shared
from manytail.mapping._ledger import LATE
from manytail.spark import map_concurrent

URL, NOTES = sys.argv[1], Path(sys.argv[2])
RATE, TASKS, ROWS, WORKERS = 100.0, 8, 2_400, 4


def note(name, line):
    file = os.open(NOTES / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def numbers(name):
    lines = (NOTES / name).read_text().splitlines() if (NOTES / name).exists() else []
    return [tuple(map(float, line.split())) for line in lines]


def url_where_leases_are_noted():
    """For Shared, which asks for the URL in each worker before its first lease."""
    from manytail.mapping._shared_store import Store

    plain = Store.exchange

    def exchange(self, ahead, terms, asks, calls, give_up=None):
        answers, now = plain(self, ahead, terms, asks, calls, give_up)
        for ask, answer in zip(asks, answers, strict=True):
            if answer.granted:
                note("leases", f"{answer.begin!r} {answer.granted!r}")
            if ask.spent:
                note("returned", repr(-ask.spent))
        return answers, now

    if plain.__name__ == "exchange" and plain.__module__ == Store.__module__:
        Store.exchange = exchange
    return URL


def call(row):
    note("calls", f"{time.time()!r} {row.id}")
    if row.id == ROWS // TASKS // 2 and not (NOTES / "killed").exists():  # in the middle of the first task
        (NOTES / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * row.id


def most_in_a_second(starts):
    starts, first, most = sorted(starts), 0, 0
    for index, start in enumerate(starts):
        while starts[first] <= start - 1:
            first += 1
        most = max(most, index - first + 1)
    return most


spark = session("local-cluster[4,2,512]")
source = spark.range(0, ROWS, 1, TASKS)
source.transform(map_concurrent, lambda row: row.id, "same long").collect()  # all workers are there
limit = Rate(RATE, shared=Shared(url_where_leases_are_noted, "rate"), name="rate")
limited = source.transform(map_concurrent, call, "twice long", workers=WORKERS, limits=limit)
rows = limited.collect()
spark.stop()

assert [tuple(row) for row in rows] == [(number, 2 * number) for number in range(ROWS)]
assert (NOTES / "killed").exists()
leases = sorted(numbers("leases"))
returned = sum(amount for (amount,) in numbers("returned"))  # by calls that came too late for their slots
slots = most_in_a_second([start + number / RATE for start, amount in leases for number in range(int(amount))])
calls = sorted(numbers("calls"))
first_end = min(max(at for at, row in calls if row // (ROWS // TASKS) == task) for task in range(TASKS))


def average(until):
    return (sum(at <= until for at, _ in calls) - 1) / (until - calls[0][0])


seen = most_in_a_second([at for at, _ in calls])
print(
    f"slots in a second: {slots}, calls in a second: {seen}, calls a second: {average(first_end):.1f} while all tasks "
    f"ran, {average(calls[-1][0]):.1f} to the end, calls: {len(calls)}"
)
assert slots <= RATE + 1 + returned
assert seen <= 1 + RATE * (1 + LATE) + returned + TASKS * WORKERS  # a call may be noted late, by any time
print("rate: ok")
