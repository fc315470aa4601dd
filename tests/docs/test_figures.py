"""The figures of the README are those of docs/figures.json, a result file of the benchmarks."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = [sys.executable, str(ROOT / "tools" / "readme_figures.py")]


def test_the_readme_says_what_was_measured():
    done = subprocess.run([*SCRIPT, "--check"], check=False)
    assert done.returncode == 0, "run `python tools/readme_figures.py`"


def test_a_row_that_was_not_measured_is_named(tmp_path):
    data = json.loads((ROOT / "docs" / "figures.json").read_text())
    data["rows"] = [row for row in data["rows"] if row["name"] != "pair"]
    result = tmp_path / "result.json"
    result.write_text(json.dumps(data))
    done = subprocess.run([*SCRIPT, "--check", str(result)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pair not measured" in done.stderr
