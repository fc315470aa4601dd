"""The figures of the README and of the pages are those of docs/figures.json, of result files of the benchmarks."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import docs_figures  # noqa: E402


@pytest.fixture
def figures(tmp_path, monkeypatch) -> Path:
    """A copy of docs/figures.json and of the pages in its place."""
    for name in ("FIGURES", "README"):
        path = getattr(docs_figures, name)
        monkeypatch.setattr(docs_figures, name, tmp_path / path.name)
        (tmp_path / path.name).write_bytes(path.read_bytes())
    pages = [tmp_path / page.name for page in docs_figures.PAGES]
    for page, copy in zip(docs_figures.PAGES, pages, strict=True):
        copy.write_bytes(page.read_bytes())
    monkeypatch.setattr(docs_figures, "PAGES", pages)
    return tmp_path / "figures.json"


def test_the_docs_say_what_was_measured():
    assert docs_figures.main(["--check"]) == 0, "run `python tools/docs_figures.py`"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("README.md", "calls in order, 1 % of them slow"),
        ("comparison.md", "calls a second, each of 10 ms"),
        ("performance.md", "`pair`"),
    ],
)
def test_a_figure_that_was_not_measured_is_seen(figures, name, row, capsys):
    page = figures.with_name(name)
    text = page.read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith(f"| {row}"))
    page.write_text(text.replace(line, line.replace("1", "9").replace("2", "9")), encoding="utf-8")
    assert docs_figures.main(["--check"]) == 1
    assert f"{name}: run" in capsys.readouterr().out


def test_a_row_that_was_not_measured_is_named(figures):
    data = json.loads(figures.read_text(encoding="utf-8"))
    for run in data["runs"]:
        run["rows"] = [row for row in run["rows"] if row["name"] != "pair"]
    figures.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(SystemExit, match="pair not measured"):
        docs_figures.main(["--check"])


def test_the_rows_of_a_result_replace_those_that_were_there(figures, tmp_path):
    data = json.loads(figures.read_text(encoding="utf-8"))
    pair = next(row for run in data["runs"] for row in run["rows"] if row["name"] == "pair")
    faster = {**pair, "rounds": {name: [100.0 if name == "ours" else 700.0] * 3 for name in pair["rounds"]}}
    result = {"environment": {**data["runs"][0]["environment"], "commit": "another"}, "rows": [faster]}
    (tmp_path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    assert docs_figures.main([str(tmp_path / "result.json")]) == 0
    kept = json.loads(figures.read_text(encoding="utf-8"))["runs"]
    assert [run["environment"]["commit"] for run in kept if faster in run["rows"]] == ["another"]
    assert sum(row["name"] == "pair" for run in kept for row in run["rows"]) == 1
    assert "| deques with one Condition | 7.0 x |" in figures.with_name("README.md").read_text(encoding="utf-8")


def test_a_result_without_a_row_of_the_docs_is_refused(figures, tmp_path):
    (tmp_path / "result.json").write_text('{"environment": {}, "rows": []}', encoding="utf-8")
    with pytest.raises(SystemExit, match="no row that the docs quote"):
        docs_figures.main([str(tmp_path / "result.json")])
