"""Prints the CPython 3.14 of the host, from which `make rivals` makes an environment. Exit status 3: it cannot be had
here, and a line says why."""

import sys

import common

if __name__ == "__main__":
    try:
        print(common.host())
    except common.UnavailableError as error:
        print(f"SKIPPED: {error}", file=sys.stderr)
        sys.exit(3)
