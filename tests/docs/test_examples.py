"""The examples of README.md and docs/ run unchanged: each Python block in its own interpreter. Those for Spark share
one interpreter, because a JVM takes ten seconds to start."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.process import run_script

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


HTTP_CLIENTS = pytest.mark.skipif(
    not all(map(find_spec, ("aiohttp", "httpx", "openai", "requests"))),
    reason="an interpreter without the dev group's HTTP clients",
)


FRAMES = pytest.mark.skipif(
    not all(map(find_spec, ("pyarrow", "polars", "duckdb"))), reason="an interpreter without the dev group's frames"
)


def blocks(language):
    """(page and line, source) of the fenced blocks of that language."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, found.start()) + 1
            marks = [pytest.mark.spark] if "pyspark" in found[1] else []
            if "import httpx" in found[1] or "from openai" in found[1]:
                marks.append(HTTP_CLIENTS)
            if "import map_arrow" in found[1]:
                marks.append(FRAMES)
            yield pytest.param(found[1], id=f"{page.name}:{line}", marks=marks)


# Runs each block of a JSON list as __main__ and reports how each ended. The first lines do what a user's shell does:
# the workers' Python is this one, and Java is found.
SPARK_SHELL = """
import contextlib, io, json, sys, traceback
from manytail.spark._java import prepare_environment

prepare_environment()
ended = {}
for name, source in json.load(open(sys.argv[1])).items():
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, name, "exec"), {"__name__": "__main__"})
        ended[name] = ""
    except BaseException:
        ended[name] = traceback.format_exc()
print(json.dumps(ended))
"""


def is_for_spark(block):
    return pytest.mark.spark in block.marks


# A process holds one kind of Spark session: tests/spark/test_elsewhere.py runs what is for Spark Connect.
# test_readme.py runs what needs the Internet.
ELSEWHERE = re.compile(r"\.remote\(|urls\.txt")
PYTHON = [block for block in blocks("python") if not ELSEWHERE.search(block.values[0])]


@pytest.mark.parametrize("source", [block for block in PYTHON if not is_for_spark(block)])
def test_an_example_runs_as_it_stands(source):
    run_script(source)


@pytest.fixture(scope="module")
def spark_examples(tmp_path_factory):
    """For each block for Spark, by name: the traceback that ended it, or an empty string."""
    sources = tmp_path_factory.mktemp("docs") / "blocks.json"
    sources.write_text(json.dumps({block.id: block.values[0] for block in PYTHON if is_for_spark(block)}))
    return json.loads(run_script(SPARK_SHELL, arguments=[str(sources)]).splitlines()[-1])


@pytest.mark.spark
@pytest.mark.parametrize("name", [block.id for block in PYTHON if is_for_spark(block)])
def test_an_example_for_spark_runs_as_it_stands(spark_examples, name):
    assert not spark_examples[name], spark_examples[name]


@HTTP_CLIENTS
def test_the_service_that_embeds_texts_asks_for_many_at_once():
    printed = run_script((ROOT / "examples" / "embeddings.py").read_text(encoding="utf-8"), arguments=["320", "32"])
    alone, together = map(float, re.findall(r"(\S+) texts in a request\n", printed))
    assert alone == 1.0 < together


def test_there_are_examples_with_spark_and_without():
    readme = re.findall(r"^```python\n(.*?)^```", PAGES[0].read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len([source for source in readme if "pyspark" in source]) == 1
    assert len([source for source in readme if "concurrent_map(\n" in source]) == 1


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *PAGES[1:], *(ROOT / "examples").rglob("*.md")]:
        for path, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text(encoding="utf-8")):
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(target), f"{page.name} links to #{anchor} of {target}"
