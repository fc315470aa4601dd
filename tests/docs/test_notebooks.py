"""The notebooks run from the top in IPython, as in Jupyter, whose kernel needs two dozen packages more."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.process import run_script

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "docs").rglob("*.ipynb"))

# Runs the cells one after the other; a cell that fails, or that would not run in a loop, ends the script.
JUPYTER = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        shell.run_cell("".join(cell["source"]), store_history=False).raise_error()
"""


@pytest.mark.skipif(find_spec("IPython") is None, reason="an interpreter without the dev group")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_the_top(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    printed = run_script(JUPYTER, arguments=[str(notebook)])
    assert "0 ZeroDivisionError" in printed
    assert "[0, 2, 4, 6, 8, 10, 12, 14, 16, 18]" in printed


def test_a_notebook_holds_no_outputs():
    assert NOTEBOOKS
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        assert all(not cell.get("outputs") for cell in cells)
