"""`progress`: reports while a map runs and once at its end."""

import asyncio
import threading
import time

import pytest

from manytail._maps import aconcurrent_map, concurrent_map


async def later(item):
    await asyncio.sleep(0)
    return item


def run(way, items, **options):
    """The results of a map, in threads, in its own loop, inline or in the caller's loop."""
    if way == "loop":

        async def collect():
            return [result async for result in aconcurrent_map(later, items, **options)]

        return asyncio.run(collect())
    if way == "inline":
        options["workers"] = "inline"
    return list(concurrent_map(later if way == "own loop" else abs, items, **options))


WAYS = ["threads", "own loop", "inline", "loop"]


@pytest.mark.parametrize("way", WAYS)
def test_the_last_report_says_that_everything_is_done(way):
    seen = []
    assert run(way, range(30), progress=seen.append, dedup=5) == list(range(30))
    assert (seen[-1].done, seen[-1].calls, seen[-1].in_flight) == (30, 30, 0)
    assert [one.done for one in seen].count(30) == 1


@pytest.mark.parametrize("way", ["threads", "inline"])
def test_reports_come_while_calls_run(way):
    reported = threading.Event()
    seen = []

    def show(stats):
        seen.append((stats.done, threading.get_ident()))
        reported.set()

    def wait(item):
        if way == "threads":
            assert reported.wait(60)
        else:
            time.sleep(0.25)
        return item

    workers = 1 if way == "threads" else "inline"
    assert list(concurrent_map(wait, range(3), workers=workers, progress=show)) == [0, 1, 2]
    assert seen[0][0] < 3
    assert len({thread for _, thread in seen}) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_ends_the_map_and_anything_else_is_logged(way, kind, caplog):
    def fail(stats):
        raise ZeroDivisionError

    assert run(way, range(3), progress=fail) == [0, 1, 2]
    assert "progress: the function raised" in caplog.text

    def end(stats):
        raise kind

    with pytest.raises(kind):
        run(way, range(3), progress=end)
