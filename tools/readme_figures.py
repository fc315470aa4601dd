"""Writes the table "Times faster" of README.md from a result file of bench/run.py, docs/figures.json.

    python tools/readme_figures.py [--check] [RESULT.json]

With RESULT.json its rows first replace those of docs/figures.json. --check writes nothing: the exit status is 1 if the
README differs.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES, README = ROOT / "docs" / "figures.json", ROOT / "README.md"
# Row of the benchmarks, the slower contestant, and what the README calls the two.
LINES = [
    ("map-long-tail", "a pool per 1,000", "calls in order, 1 % of them slow", "a thread pool per 1,000"),
    ("pair", "deques + Condition", "`put` and `get`, one thread", "deques with one Condition"),
    ("bulk", "SimpleQueue", "`put_many` and `get_many` of 1,000", "`queue.SimpleQueue`, one by one"),
    ("original", "Java original", "5 queues, 50 writers, 1 reader", "the Java original"),
    ("ft-2+2-tuple", "SimpleQueue", "2 putters, 2 getters, fresh tuples, no GIL", "`queue.SimpleQueue`"),
]
TABLE = re.compile(r"(?<=\| what \| than \| times \|\n\|---\|---\|---\|\n)(?:\|.*\n)+")


def times_faster(row: dict[str, Any], rival: str) -> float:
    """The median over rounds of how many times as fast ours was in that round."""
    pairs = zip(row["rounds"][row["ours"]], row["rounds"][rival], strict=True)
    is_rate = row["unit"].endswith("/s")
    return statistics.median(ours / theirs if is_rate else theirs / ours for ours, theirs in pairs)


def words(times: float) -> str:
    return f"{times:.0f} x" if times >= 10 else f"{times:.1f} x"


def table(data: dict[str, Any]) -> str:
    rows = {row["name"]: row for row in data["rows"]}
    return "".join(
        f"| {what} | {than} | {words(times_faster(rows[name], rival))} |\n" for name, rival, what, than in LINES
    )


def keep(result: Path) -> None:
    """Keep the rows that the README quotes as docs/figures.json."""
    data = json.loads(result.read_text(encoding="utf-8"))
    quoted = {name for name, *_ in LINES}
    rows = [row for row in data["rows"] if row["name"] in quoted and not row["error"]]
    if missing := quoted - {row["name"] for row in rows}:
        sys.exit(f"{result}: {', '.join(sorted(missing))} not measured (expected: all rows that the README quotes)")
    FIGURES.write_text(
        json.dumps({"environment": data["environment"], "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    for result in (argument for argument in arguments if argument != "--check"):
        keep(Path(result))
    text = README.read_text(encoding="utf-8")
    made = TABLE.sub(lambda _: table(json.loads(FIGURES.read_text(encoding="utf-8"))), text)
    if check:
        return int(made != text)
    README.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
