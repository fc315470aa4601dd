"""Run random cases until one fails, or replay one. From tests/: python -m fuzz --help"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import random
import signal
import sys
import threading
import time
from types import CodeType, FunctionType
from typing import Any

from . import maps, queues

FUZZERS: dict[str, Any] = {"maps": maps, "queues": queues}
LIMIT = 100  # seconds after which a case hangs: its stacks are printed, and the process ends
noise: list[str] = []  # what nobody could be told: exceptions of threads and finalizers, errors that asyncio logs


def checked(case: Any) -> None:
    noise.clear()
    case.run()
    gc.collect()
    if noise:
        raise AssertionError("unreported: " + "; ".join(noise))


def attempt(fuzzer: str, seed: int) -> None:
    """Run a case. Whatever stops it, a crash or a hang too, shows the command that replays it as a file's name, and the
    case in place of the function's."""
    case = FUZZERS[fuzzer].draw(seed)
    command, name = f"python -m fuzz {fuzzer} --seed {seed}", repr(case)
    code: CodeType = checked.__code__.replace(co_filename=command, co_name=name, co_qualname=name)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    try:
        FunctionType(code, globals())(case)
    except BaseException:
        print(f"{name}\nreplay: {command}", file=sys.stderr, flush=True)
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()


def search(given: argparse.Namespace) -> None:
    """Run cases in the order of their seeds. Prints progress."""
    begin = shown = time.monotonic()
    seed = ran = 0
    for seed in range(given.first, given.first + given.seeds):
        now = time.monotonic()
        if now > begin + given.minutes * 60:
            break
        if now - shown >= 10:
            shown = now
            print(f"{given.fuzzer}: {ran} cases, next {seed}, {ran / (now - begin):.0f} per second", flush=True)
        if given.only is None or FUZZERS[given.fuzzer].draw(seed).kind in given.only:
            attempt(given.fuzzer, seed)
            ran += 1
    print(f"{given.fuzzer}: {ran} cases from seed {given.first}, none failed ({time.monotonic() - begin:.0f} s)")


def unraisable(seen: Any) -> None:
    if not isinstance(seen.exc_value, (queues.Hostile, KeyboardInterrupt)):  # of an item's finalizer, or in one
        noise.append(f"{seen.exc_value!r} in {seen.object!r}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("fuzzer", choices=FUZZERS)
    parser.add_argument("--seed", type=int, help="replay this case, --times=10 times")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seeds", type=int, help="how many cases to run")
    parser.add_argument("--from", dest="first", type=int, help="the first seed; with --minutes alone a random one")
    parser.add_argument("--minutes", type=float, default=1e9, help="how long")
    parser.add_argument("--only", nargs="+", help="cases of these kinds alone, the first word that a case shows")
    given = parser.parse_args()
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = unraisable
    threading.excepthook = lambda seen: noise.append(f"{seen.exc_value!r} in {seen.thread}")
    logged = logging.Handler(logging.ERROR)
    logged.emit = lambda record: noise.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("asyncio").addHandler(logged)
    logging.disable(logging.WARNING)  # of the broker, about consumers that are not there
    gc.collect()
    gc.freeze()  # so that each case may collect
    if given.seed is not None:
        print(FUZZERS[given.fuzzer].draw(given.seed), flush=True)
        for _ in range(given.times):
            attempt(given.fuzzer, given.seed)
        return
    if given.first is None:
        given.first = random.randrange(10**9) if given.seeds is None else 0
    given.seeds = 10**9 if given.seeds is None else given.seeds
    search(given)


if __name__ == "__main__":
    main()
