"""Writes measured figures into the docs: the table "Times faster" of README.md, and what of docs/comparison.md,
docs/performance.md and docs/design/record.md stands between two comments.

    python tools/docs_figures.py [--check] [RESULT.json ...]

They are of docs/figures.json, which holds runs of bench/run.py, each with its machine, and of them the rows that the
docs quote. The rows of a RESULT.json, a result file of bench/run.py, replace those of the same name. --check writes
nothing: the exit status is 1 if a page differs.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from harness import Result, Target, number  # noqa: E402

FIGURES, README = ROOT / "docs" / "figures.json", ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = (DOCS / "comparison.md", DOCS / "performance.md", DOCS / "design" / "record.md")
# Row of the benchmarks, the other contestant, and what the README calls the two.
LINES = [
    ("map-long-tail", "a pool per 1,000", "calls in order, 1 % of them slow", "a thread pool per 1,000"),
    ("beside-tail", "map(buffersize)", "the same on 3.14", "`map(buffersize=128)`"),
    ("beside-no-op-async", "semaphore and gather", "coroutines that return at once", "semaphore and `gather`"),
    ("pair", "deques + Condition", "`put` and `get`, one thread", "deques with one Condition"),
    ("original", "Java original", "5 queues, 50 writers, 1 reader", "the Java original"),
    ("ft-2+2-tuple", "SimpleQueue", "2 putters, 2 getters, tuples, no GIL", "`queue.SimpleQueue`"),
]
# Rows of docs/comparison.md, and what it calls them. Coroutines have rows of the same names with -async behind.
BESIDE = {
    "beside-no-op": "microseconds of processor time per item whose call returns at once, 16 at once; lower is better",
    "beside-equal": "calls a second, each of 10 ms, 64 at once; higher is better",
    "beside-tail": "calls a second, of which one in a hundred takes 500 ms; higher is better",
    "beside-429": "seconds for 300 calls, 64 at once, to an API that answers 100 a second; lower is better",
    "beside-memory": "MB that the process grows by while a million results are taken one by one; lower is better",
}
SPARK = {"spark-long-tail": "rows a second, of which one in a hundred takes 500 ms; higher is better"}
# In the row of refused calls the standard library's ways need a loop around the call.
WITH_A_LOOP = {
    "ThreadPoolExecutor.map": "ThreadPoolExecutor.map and a loop",
    "semaphore and gather": "semaphore, gather and a loop",
}
OTHERS = ("pyarallel", "aiometer", "joblib", "async-batch-llm", "pyspark", "pyarrow")
TABLE = re.compile(r"(?<=\| what \| than \| times \|\n\|---\|---\|---\|\n)(?:\|.*\n)+")
MADE = re.compile(r"(<!-- made of figures.json: (\w+) -->\n\n).*?(?=\n<!-- end -->)", re.DOTALL)

QUOTED = {name for name, *_ in LINES} | {name + kind for name in BESIDE for kind in ("", "-async")} | set(SPARK)


def read() -> list[dict[str, Any]]:
    return json.loads(FIGURES.read_text(encoding="utf-8"))["runs"]


def kept(runs: list[dict[str, Any]], result: Path) -> list[dict[str, Any]]:
    """The runs with the rows of one more, where they are quoted."""
    data = json.loads(result.read_text(encoding="utf-8"))
    rows = [row for row in data["rows"] if row["name"] in QUOTED and not row["error"]]
    if not rows:
        sys.exit(f"{result}: no row that the docs quote (expected: some of {', '.join(sorted(QUOTED))})")
    still = QUOTED - {row["name"] for row in rows}
    old = [{**run, "rows": [row for row in run["rows"] if row["name"] in still]} for run in runs]
    return [run for run in old if run["rows"]] + [{"environment": data["environment"], "rows": rows}]


def times_faster(row: Result, rival: str) -> float:
    """The median over rounds of how many times as fast ours was in that round."""
    ratio = row.figure(Target("<=", 0.0, rival))
    return ratio if row.unit.endswith("/s") else 1 / ratio


def words(times: float) -> str:
    return f"{times:.0f} x" if times >= 10 else f"{times:.1f} x"


def readme_table(rows: dict[str, Result]) -> str:
    return "".join(
        f"| {what} | {than} | {words(times_faster(rows[name], rival))} |\n" for name, rival, what, than in LINES
    )


def exact_table(rows: dict[str, Result]) -> str:
    """The rows of the README as they were measured."""
    lines = ["| what | ours | against | ours / that |\n| --- | --- | --- | --- |\n"]
    for name, rival, *_ in LINES:
        row = rows[name]
        theirs, ratio = number(row.value(rival)) + row.shown_more(rival), row.figure(Target("<=", 0.0, rival))
        lines.append(f"| `{name}` | {row.shown(row.ours)} | {rival} {theirs} | {ratio:.3g} |\n")
    return "".join(lines)


def cell(row: Result, way: str) -> str:
    """The median of the rounds, and what was counted if there was any."""
    name = way if way in row.rounds else WITH_A_LOOP.get(way, way)
    if name not in row.rounds:
        return ""
    counted = [f"{count:,.0f} {what}" for what, count in row.counts.get(name, {}).items() if count]
    return ", ".join([number(row.value(name)), *counted])


def table(rows: dict[str, Result], titles: dict[str, str], head: str) -> str:
    ways = list(rows[next(iter(titles))].rounds)
    lines = [[head, *ways], ["---"] * (1 + len(ways))]
    lines += [[title, *(cell(rows[name], way) for way in ways)] for name, title in titles.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def conditions(environment: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """When, where and with what a run was measured."""
    machine, versions = environment["machine"], environment["versions"]
    names = ", ".join(f"`{row['name']}`" for row in rows)
    others = ", ".join(f"{name} {version}" for name, version in versions.items() if name in OTHERS)
    first, last = machine["load"][0], environment["load at the end"][0]
    where = f"{rows[0]['interpreter']}, {machine['cpus']} x {machine['cpu']}, load {first:g} to {last:g}"
    return f"- {names}: {environment['date']}, commit {environment['commit']}, {where}; {others}.\n"


def parts(runs: list[dict[str, Any]], rows: dict[str, Result]) -> dict[str, str]:
    """What stands between two comments, by its name there."""
    beside = [
        (run["environment"], [row for row in run["rows"] if row["name"].startswith(("beside-", "spark-"))])
        for run in runs
    ]
    return {
        "readme": exact_table(rows),
        "plain": table(rows, BESIDE, "plain functions"),
        "coroutines": table(rows, {f"{name}-async": title for name, title in BESIDE.items()}, "coroutines"),
        "spark": table(rows, SPARK, "one task, 64 at once, 20,000 rows in batches of 1,000"),
        "conditions": "".join(conditions(environment, some) for environment, some in beside if some),
    }


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    runs = read()
    for result in (argument for argument in arguments if argument != "--check"):
        runs = kept(runs, Path(result))
    rows = {row["name"]: Result.from_json(row) for run in runs for row in run["rows"]}
    if missing := QUOTED - rows.keys():
        sys.exit(f"{', '.join(sorted(missing))} not measured (expected: all rows that the docs quote)")
    made = parts(runs, rows)
    pages = {README: TABLE.sub(lambda _: readme_table(rows), README.read_text(encoding="utf-8"))}
    for page in PAGES:
        pages[page] = MADE.sub(lambda found: found[1] + made[found[2]], page.read_text(encoding="utf-8"))
    differing = [path for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    if check:
        print(*(f"{path.name}: run `python tools/docs_figures.py`" for path in differing), sep="\n")
        return int(bool(differing))
    FIGURES.write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")
    for path in differing:
        path.write_text(pages[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
