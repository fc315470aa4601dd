"""Runs the scheduler in random worlds, until a promise is broken. From tests/: python -m new_maps --help"""

import argparse
import time

from . import world


def main() -> int:
    parser = argparse.ArgumentParser(prog="new_maps", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many worlds")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first of them")
    given = parser.parse_args()
    begin = shown = time.monotonic()
    for seed in range(given.first, given.first + given.seeds):
        if time.monotonic() - shown >= 10:
            shown = time.monotonic()
            print(f"{seed - given.first} worlds, {(seed - given.first) / (shown - begin):.0f} per second", flush=True)
        for has_limits in (False, True):
            try:
                world.run(seed, has_limits)
            except AssertionError as error:
                error.add_note(f"world.run({seed}, has_limits={has_limits})")
                raise
    print(f"{given.seeds} worlds from {given.first}, each without limits and with them: every promise is kept")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
