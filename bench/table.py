"""Prints result files of run.py as the Markdown table of docs/design/record.md. The last file that has a row counts.

    python bench/table.py build/bench/bench-....json ...
"""
from __future__ import annotations

import json
import sys
from pathlib import Path

from harness import Result, Target, number, verdict

HEAD = ("what", "ours", "against", "ours / that", "to reach", "reached")


def lines_of(result: Result) -> list[tuple[str, ...]]:
    """A line per target, the other rivals with the first; one line for a row without a target."""
    ours = result.shown(result.ours)
    lines = []
    for target in result.targets:
        rival, ratio = "", ""
        if target.against:
            rival, ratio = against(result, target.against), f"{result.figure(target):.3g}"
        goal = f"{target.relation} {target.bound:g}" + ("" if target.against else f" {result.unit}")
        lines.append((rival, ratio, goal, {"reached": "yes", "MISSED": "**no**"}[verdict(result, target)]))
    aimed = {target.against for target in result.targets}
    for name in result.rounds:
        if name != result.ours and name not in aimed:
            ratio = result.figure(Target("<=", 0.0, name))
            lines.append((against(result, name), f"{ratio:.3g}", "", ""))
    first, *more = lines or [("", "", "", "")]
    return [(f"{result.what} (`{result.name}`)", ours, *first), *(("", "", *line) for line in more)]


def against(result: Result, rival: str) -> str:
    return f"{rival} {number(result.value(rival))}{result.shown_more(rival)}"


def main(paths: list[str]) -> None:
    if not paths:
        sys.exit("usage: python bench/table.py RESULT.json ...")
    rows: dict[str, Result] = {}
    for path in paths:
        for row in json.loads(Path(path).read_text(encoding="utf-8"))["rows"]:
            if row["error"] is None:
                rows[row["name"]] = Result.from_json(row)
    lines = [HEAD, ("---",) * len(HEAD), *(line for result in rows.values() for line in lines_of(result))]
    for line in lines:
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
