"""The API reference has an entry for each public name, and the pages of the design name what exists."""

import functools
import importlib
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.thread_unsafe(reason="reads all sources, and no thread reads them while they change")

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
MODULES = ["manytail", "manytail.mapping", "manytail.executor", "manytail.queue", "manytail.broker", "manytail.arrow",
           "manytail.arrow.engine", "manytail.spark"]  # fmt: skip
FOLDERS = ["include", "pyx", "python", "tests", "tools", "docs"]
SUFFIXES = {".h", ".c", ".pxd", ".pyx", ".pxi", ".py", ".toml", ".md"}
DESIGN = sorted((ROOT / "docs" / "design").glob("*.md"))


def names_in_the_reference() -> set[str]:
    text = "".join(path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md"))
    return {found.rpartition(".")[2] for found in re.findall(r"^::: (\S+)", text, re.MULTILINE)}


def public_names(module: str) -> set[str]:
    """Of a module with an __all__; what a module exports of another one of ours has its entry there."""
    if module.startswith(("manytail.arrow", "manytail.spark")):
        pytest.importorskip("pyspark")
    return set(importlib.import_module(module).__all__) - {"__version__", "CALL", "ERROR", "NAME"}


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_has_an_entry(module):
    # These are the standard library's; the page says so.
    standard = {"Empty", "Full", "ShutDown", "LifoQueue", "PriorityQueue"}
    assert public_names(module) - names_in_the_reference() <= standard


@functools.cache
def sources() -> tuple[frozenset[str], frozenset[str]]:
    """The names of the project's files, and the words in its code."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*") if path.suffix in SUFFIXES]
    words = {path.stem for path in paths}
    for path in paths:
        if path.is_relative_to(ROOT / "include") or path.is_relative_to(ROOT / "pyx") or path.suffix in (".py", ".h"):
            words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return frozenset(path.name for path in paths), frozenset(words)


@pytest.mark.parametrize("page", DESIGN, ids=[path.stem for path in DESIGN])
def test_the_design_names_files_and_functions_that_exist(page):
    """In `quotes`: a name with a suffix is a file; one with an underscore is a word of the code, or of a block."""
    files, words = sources()
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```.*?^```|^    .*$", text, re.DOTALL | re.MULTILINE)
    quoted = set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)))
    a_file = re.compile(r"[\w/]+\.(?:h|pxd|pyx|pxi|py|toml|c|md)")
    named = {name.rpartition("/")[2] for name in quoted if a_file.fullmatch(name)}
    assert named - files == set()
    identifiers = {name.removesuffix("()") for name in quoted if re.fullmatch(r"_*[a-z]\w*_\w+(?:\(\))?", name)}
    assert identifiers - words - set(re.findall(r"\w+", " ".join(blocks))) == set()
