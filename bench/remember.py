"""The cost of `remember`: processor time per item of a no-op map, plain, recorded and found, on SQLite and PostgreSQL.

python bench/remember.py [rounds]
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import postgres

from manytail import Shared, concurrent_map

ITEMS = 20_000


def same(item):
    return item


def spent(**options):
    """Microseconds of processor time per item."""
    begin = time.process_time()
    for _ in concurrent_map(same, range(ITEMS), **options):
        continue
    return (time.process_time() - begin) / ITEMS * 1e6


def main(rounds):
    folder, server = Path(tempfile.mkdtemp()), None if postgres.missing() else postgres.Server()
    databases = {"sqlite": str(folder / "a.db")} | ({"postgresql": server.url()} if server else {})
    figures = {}
    try:
        for number in range(rounds):
            figures.setdefault("plain", []).append(spent())
            for kind, url in databases.items():
                shared = Shared(url, f"round {number}")
                shared.remembered()  # opens the connection and makes the tables
                for what in ("recorded", "found"):
                    figures.setdefault(f"{kind} {what}", []).append(spent(remember=shared))
    finally:
        if server:
            server.remove()
    plain = statistics.median(figures["plain"])
    for what, values in figures.items():
        print(f"{what:22}{statistics.median(values):8.1f} us/item {statistics.median(values) / plain:6.2f} x plain")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
