"""`python -m manytail demo`: the options, and how a run ends.

Exit status: 0 all rows and calls add up, 1 they do not or the job failed, 2 something is missing or an option is wrong, 130 stopped by Ctrl-C.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from . import needs


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m manytail demo",
        description="Enriches the flights that left New York in 2013 with the weather: one HTTP call each, to a service that runs beside the job.",
        epilog="Needs the extra manytail[demo].",
    )
    part = made.add_mutually_exclusive_group()
    part.add_argument("--month", type=int, choices=range(1, 13), default=1, metavar="1-12", help="the month to run (default: 1, 27,004 flights)")
    part.add_argument("--all", action="store_true", help="the whole year: 336,776 flights")
    made.add_argument("--rows", type=positive, metavar="N", help="only the first N flights of it")
    made.add_argument("--workers", type=positive, default=64, metavar="N", help="calls running at once (default: 64)")
    made.add_argument("--per-key", type=positive, default=16, metavar="N", help="calls running at once for one carrier (default: 16)")
    made.add_argument("--seed", type=int, default=13, metavar="N", help="of the service's latencies and refusals (default: 13)")
    made.add_argument("--compare", action="store_true", help="run the usual thread pool per batch, too, and set it beside")
    made.add_argument("--out", type=Path, default=Path("out/demo"), metavar="DIR", help="where everything goes (default: out/demo)")
    return made


def positive(text: str) -> int:
    """An argument that must be 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: expected 1 or more")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo and returns the exit status."""
    given = parser().parse_args(arguments)
    lacking = needs.missing()
    if lacking:
        print(needs.advice(lacking), file=sys.stderr)
        return 2
    try:
        return _run(given)
    except KeyboardInterrupt:  # before anything was started
        return 130


def _run(given: argparse.Namespace) -> int:
    # Here, not above: these need the extra, and --help does not.
    from manytail.spark._java import JavaNotFoundError

    from .data import Share
    from .run import Options, perform
    from .stopping import Stopped, stoppable

    share = Share(None if given.all else given.month, given.rows)
    options = Options(share, given.workers, given.per_key, given.seed, given.out, given.compare)
    try:
        faults = stoppable(partial(perform, options))
    except Stopped:
        print(f"Stopped: the job, the service and Spark have ended; {given.out} holds no result of this run.", file=sys.stderr)
        return 130
    except JavaNotFoundError as error:
        print(f"manytail demo: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError) as error:
        print(f"manytail demo failed: {error}\nSpark's log is {given.out / 'spark.log'}.", file=sys.stderr)
        return 1
    for fault in faults:
        print(f"Does not add up: {fault}.", file=sys.stderr)
    return 1 if faults else 0
