"""The examples of README.md and docs/ run as they stand there: each Python block in an interpreter of its own."""

import re
from pathlib import Path

import pytest
from support.process import run_script

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    """(page and line, source) of the fenced blocks of that language."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, found.start()) + 1
            marks = [pytest.mark.spark] if "pyspark" in found[1] else []
            yield pytest.param(found[1], id=f"{page.name}:{line}", marks=marks)


# What a user's shell does by itself: the workers' Python is this one, and Java is found.
SPARK_SHELL = "from manytail.spark._java import prepare_environment\nprepare_environment()\n"


@pytest.mark.parametrize("source", list(blocks("python")))
def test_an_example_runs_as_it_stands(source):
    run_script((SPARK_SHELL if "pyspark" in source else "") + source)


def test_there_are_examples_for_threads_and_for_spark():
    readme = re.findall(r"^```python\n(.*?)^```", PAGES[0].read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len([source for source in readme if "pyspark" in source]) == 1
    assert len([source for source in readme if "threading" in source]) == 1


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
