"""The steps of the demo, what the terminal shows of them, and how it ends.

Exit status: 0 every claim holds; 1 one does not, or the demo failed; 2 a wrong option; 130 stopped.
"""

import argparse
import multiprocessing
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from signal import SIGINT

from manytail import Results, Shared

from . import api, job
from .claims import Claim, Seen, claims
from .page import page

KILLED_AT = 0.6  # of the items are paid for
FEWEST = 150  # items; fewer would not use up the quota
REFUSED = 1 / 3  # of the pool's calls, at least
TICK = 0.1  # seconds between two looks at the API's log

interrupted: list[int] = []  # signals that came


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = "Makes calls to a local API that has a quota, is slow and fails; kills the run and resumes it. 15 seconds."
    parser = argparse.ArgumentParser(prog="python -m manytail demo", description=about)
    parser.add_argument("--spark", action="store_true", help="the Spark job instead (--spark --help for its options)")
    parser.add_argument("--items", type=int, default=500, metavar="N", help="calls of each run (default: 500)")
    folder = Path("out/demo")
    parser.add_argument("--out", type=Path, default=folder, metavar="DIR", help=f"for the page (default: {folder})")
    options = parser.parse_args(arguments)
    if options.items < FEWEST:
        parser.error(f"argument --items: {options.items} (expected: {FEWEST} or more)")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo and returns the exit status."""
    options = parse(arguments)
    signal.signal(SIGINT, interrupt)
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            seen = run(options.items, Path(folder) / "run.db")
        found = claims(seen)
        where = options.out / "index.html"
        options.out.mkdir(parents=True, exist_ok=True)
        where.write_text(page(seen, found), encoding="utf-8")
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except (OSError, EOFError, RuntimeError) as error:
        print(f"manytail demo failed: {error or type(error).__name__}", file=sys.stderr)
        return 1
    print(*map(line, found), f"\nThe curves: {where}", sep="\n")
    failures = [claim for claim in found if not claim.holds]
    for claim in failures:
        print(f"Does not hold: {claim.text} ({claim.found}).", file=sys.stderr)
    return int(bool(failures))


def line(claim: Claim) -> str:
    return f"  {'yes' if claim.holds else 'NO ':<5}{claim.text}: {claim.found}"


def run(items: int, database: Path) -> Seen:
    """All runs, one after the other, against one API."""
    with api.serving() as service:
        quota, pool, pool_events = pooled(service, items)
        items = len(pool)
        rate = job.PART * quota
        step("the map", f"concurrent_map with limits=Rate({rate:g}) and retry=Retry.http()")
        results = job.mapped(service.urls("map", items, quota), quota)
        mapped = shown(results, items)
        step("killed", f'the same with remember="run.db", in a process that is killed with -9 at {KILLED_AT:.0%}')
        urls = service.urls("job", items, quota)
        killed = run_and_kill(service, urls, quota, database)
        recorded = Shared(database, f"{job.__name__}.fetch").remembered()
        step("resumed", f"the same call again; run.db has {recorded} results")
        resumed_at = service.log().now
        again = job.mapped(urls, quota, database)
        resumed = shown(again, items)
        events = [*pool_events, *(event for event in service.log().events if event.run in ("map", "job"))]
    return Seen(
        items, quota, events, pool, mapped, results.stats(), killed, recorded, resumed_at, resumed, again.stats()
    )


def pooled(service: api.Api, items: int) -> tuple[int, list[str | None], list[api.Event]]:
    """The pool's calls with a quota that they exceed. A machine that makes few calls a second gets a smaller one, and
    fewer items, so that the demo takes no longer. Returns the quota, the results, and the API's events of the run,
    which is named "pool" in them."""
    quota = api.QUOTA
    while True:
        step("the API", f"{quota} calls a second at most; half take 40 ms, one in fifty half a second or more")
        step("a pool", f"{items} calls by {job.WORKERS} threads, and nothing else")
        run = f"pool-{quota}"
        pool = job.pool(service.urls(run, items, quota))
        events = [event._replace(run="pool") for event in service.log().events if event.run == run]
        if sum(event.status == 429 for event in events) >= REFUSED * items or quota == 1:
            return quota, pool, events
        quota, items = max(1, quota // 2), max(FEWEST, items // 2)


def run_and_kill(service: api.Api, urls: Sequence[str], quota: int, database: Path) -> float:
    """Returns when the process was killed, after the API has answered what it still asked for."""
    process = multiprocessing.get_context("spawn").Process(target=run_alone, args=(urls, quota, database), daemon=True)
    with masked():
        process.start()
    try:
        while (paid := sum(event.run == "job" and event.status == 200 for event in service.log().events)) \
                < KILLED_AT * len(urls):  # fmt: skip
            process.join(TICK)
            bar(paid, len(urls))
            if process.exitcode is not None:
                raise RuntimeError(f"the run ended by itself, with exit status {process.exitcode}")
    finally:
        process.kill()
        process.join()
    log = service.log()
    killed = log.now
    while log.open:
        time.sleep(TICK)
        log = service.log()
    bar()
    return killed


@contextmanager
def masked() -> Iterator[None]:
    """A process that is started here gets no Ctrl-C, not even while it starts. Windows has no such mask."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [SIGINT])
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [SIGINT])
    else:
        yield


def run_alone(urls: Sequence[str], quota: int, database: Path) -> None:
    """What the process that is killed does."""
    signal.signal(SIGINT, signal.SIG_IGN)  # Ctrl-C is for the demo, which then kills this process
    for _ in job.mapped(urls, quota, database):
        pass


def shown(results: Results[str], items: int) -> list[str]:
    """All results, with a bar while they come."""
    found, next_look = [], 0.0
    with closing(results):
        for result in results:
            found.append(result)
            if time.monotonic() >= next_look:
                bar(len(found), items)
                next_look = time.monotonic() + TICK
    bar()
    return found


def step(name: str, text: str) -> None:
    print(f"{name:<8} {text}", flush=True)


def interrupt(number: int, frame: object) -> None:
    """Ctrl-C: the next `bar` raises. CPython drops what a handler raises during a finalizer. A second one raises."""
    interrupted.append(number)
    signal.signal(SIGINT, signal.default_int_handler)


def bar(done: int = 0, items: int = 0) -> None:
    """A line that is drawn over itself; without arguments it is cleared. Nothing where no terminal shows it."""
    if interrupted:
        raise KeyboardInterrupt
    if sys.stdout.isatty():
        filled = "#" * (40 * done // items) if items else ""
        text = f"         [{filled:<40}] {done} of {items}" if items else ""
        print(f"\r{text:<72}", end="" if items else "\r", flush=True)
