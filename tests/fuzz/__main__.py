"""Run random cases until one fails, or replay one. From tests/: python -m fuzz --help

A seed draws a case. Threads make no two runs of a case equal, so a case is replayed several times. A case is short, and
never waits for a time to pass. `make fuzz MINUTES=600` runs all fuzzers on both builds."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import logging
import random
import signal
import sys
import threading
import time
from types import FunctionType
from typing import Any

from . import maps, queues, situations

FUZZERS: dict[str, Any] = {"maps": maps, "queues": queues, "situations": situations}
LIMIT = 100  # seconds after which a case hangs: its stacks are printed, and the process ends
noise: list[str] = []  # what nobody could be told: exceptions of threads and finalizers, errors that asyncio logs


def checked(case: Any) -> None:
    noise.clear()
    case.run()
    gc.collect()
    if noise:
        raise AssertionError("unreported: " + "; ".join(noise))


def attempt(case: Any, command: str) -> None:
    """Run a case. Whatever stops it, a crash or a hang too, shows the command that replays it as a file's name."""
    code = checked.__code__.replace(co_filename=command)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    try:
        FunctionType(code, globals())(case)
    except BaseException:
        print(f"{case}\nreplay: {command}", file=sys.stderr, flush=True)
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()


def unraisable(seen: Any) -> None:
    if not isinstance(seen.exc_value, (queues.Hostile, KeyboardInterrupt)):  # of an item's finalizer, or in one
        noise.append(f"{seen.exc_value!r} in {seen.object!r}")


def listen() -> None:
    """Note what nobody is told, and let Ctrl-C raise, in a process that a shell has started in the background too."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = unraisable
    threading.excepthook = lambda seen: noise.append(f"{seen.exc_value!r} in {seen.thread}")
    logged = logging.Handler(logging.ERROR)
    logged.emit = lambda record: noise.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("asyncio").addHandler(logged)
    logging.disable(logging.WARNING)  # of the broker, about consumers that are not there


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("fuzzer", choices=FUZZERS)
    parser.add_argument("--seed", type=int, help="replay this case ten times")
    parser.add_argument("--from", dest="first", type=int, default=random.randrange(10**9), help="the first seed")
    parser.add_argument("--seeds", type=int, help="how many cases to run")
    parser.add_argument("--minutes", type=float, default=1e9, help="how long")
    parser.add_argument("--only", nargs="+", help="cases of these kinds alone, the first word that a case shows")
    given = parser.parse_args()
    seeds = itertools.islice(itertools.count(given.first), given.seeds)
    listen()
    gc.collect()
    gc.freeze()  # so that each case may collect
    begin, ran, first = time.monotonic(), 0, given.first if given.seed is None else given.seed
    for seed in seeds if given.seed is None else [given.seed] * 10:
        case = FUZZERS[given.fuzzer].draw(seed)
        if given.only is None or case.kind in given.only:
            attempt(case, f"python -m fuzz {given.fuzzer} --seed {seed}")
            ran += 1
        if time.monotonic() - begin > given.minutes * 60:
            break
    print(f"{given.fuzzer}: {ran} cases from seed {first}, none failed ({time.monotonic() - begin:.0f} s)")


if __name__ == "__main__":
    main()
