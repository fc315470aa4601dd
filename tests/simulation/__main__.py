"""Replay a seed, look for a seed that fails, or look for the planted faults. From tests/: python -m
simulation --help"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import chain

from . import shared
from .code import Code
from .lanes import Violation
from .mutants import MUTANTS, first_seed
from .world import replay, run


def search(first: int, seeds: int, run: Callable[[int, Code], None]) -> int:
    """Run the seeds in order; print progress, and the trace of the first one that fails."""
    code = Code()
    begin = shown = time.monotonic()
    for number, seed in enumerate(range(first, first + seeds)):
        now = time.monotonic()
        if now - shown >= 10:
            shown = now
            print(f"{number} seeds, next {seed}, {number / (now - begin):.0f} per second", flush=True)
        try:
            run(seed, code)
        except Violation as violation:
            print(violation)
            return 1
    print(f"{seeds} seeds from {first}: every promise is kept ({time.monotonic() - begin:.0f} s)")
    return 0


def search_mutants(seeds: int) -> int:
    """Each planted fault, and the first seed that finds it."""
    missed = 0
    for mutant in MUTANTS:
        found = first_seed(mutant, chain(range(seeds), [mutant.seed]))
        missed += found is None
        print(f"{'NOT FOUND' if found is None else found:>9}  {mutant.name}  (known: {mutant.seed})", flush=True)
    print(f"{len(MUTANTS) - missed} of {len(MUTANTS)} found within {seeds} seeds")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="replay this seed and print its trace")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many seeds to run")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--mutants", action="store_true", help="plant each fault, and print the first of 1,000 seeds that finds it"
    )
    parser.add_argument("--shared", action="store_true", help="worlds with shared limits (simulation/shared.py)")
    given = parser.parse_args()
    if given.seed is not None:
        trace = (shared.replay if given.shared else replay)(given.seed, Code())
        print(trace)
        return 1 if "\nVIOLATION" in trace else 0
    if given.mutants:
        return search_mutants(1_000)
    return search(given.first, given.seeds, shared.run if given.shared else run)


if __name__ == "__main__":
    sys.exit(main())
