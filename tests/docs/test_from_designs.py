"""docs/design/from-designs.toml: every sentence of the five documents is looked at, and what it names exists."""

import ast
import functools
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
try:
    import from_designs
finally:
    sys.path.pop(0)

KINDS = "cdef|cpdef|def|async def|class|ctypedef|template|struct"  # what a definition in Cython or C++ begins with
DOCUMENTS = from_designs.documents()
CLAIMS = [(document["name"], claim) for document in DOCUMENTS for claim in from_designs.claims(document)]
SECTIONS = [(document, section) for document in DOCUMENTS for section in document["section"]]


def label(document, claim):
    return f"{document} {claim['number']}: {claim['says']}"


@functools.cache
def names_in(path):
    """The functions and classes of a Python file, methods as `Class.method`."""
    module = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = set()
    for node in module.body:
        if isinstance(node, kinds):
            names.add(node.name)
            names.update(f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, kinds))
    return names


@functools.cache
def defines(path, name):
    """Whether that file defines a function, method, class or struct of that name. `Class.method` for a method."""
    if path.endswith(".py"):
        return name in names_in(path)
    text = (ROOT / path).read_text(encoding="utf-8")
    for part in name.split("."):
        found = re.search(rf"^ *(?:{KINDS})\b[^=#:]*\b{part}\b", text, re.MULTILINE)
        if found is None:
            return False
        text = text[found.end() :]  # a method stands behind the name of its class
    return True


def missing(places):
    split = [place.partition(": ")[::2] for place in places]
    return [place for place in split if not (ROOT / place[0]).is_file() or (place[1] and not defines(*place))]


@pytest.mark.parametrize(("document", "section"), SECTIONS, ids=lambda it: it.get("name") or it["title"])
def test_each_sentence_makes_a_claim_or_is_listed_as_making_none(document, section):
    claimed = {number for claim in section["claim"] for number in claim["sentences"]}
    silent = set(section.get("silent", []))
    assert claimed | silent == set(range(1, section["sentences"] + 1))
    assert not claimed & silent


def test_the_five_documents_are_there_with_their_claims():
    assert [document["name"] for document in DOCUMENTS] == ["qpid", "pull", "multiqueue", "pubsub", "threading"]
    assert sum(section["sentences"] for _, section in SECTIONS) >= 320
    assert len(CLAIMS) >= 234
    assert len({label(*claim) for claim in CLAIMS}) == len(CLAIMS)


def test_whatever_is_not_the_same_says_why():
    assert {claim["is"] for _, claim in CLAIMS} == set(from_designs.MEANINGS)
    assert [label(*claim) for claim in CLAIMS if claim[1]["is"] != "same" and len(claim[1].get("why", "")) < 10] == []


def test_whatever_is_here_is_somewhere_and_is_shown_by_a_test():
    here = [claim for claim in CLAIMS if claim[1]["is"] in ("same", "differs")]
    assert [label(*claim) for claim in here if not claim[1].get("where")] == []
    assert [label(*claim) for claim in here if not claim[1].get("tests")] == []


def test_each_function_and_each_test_that_is_named_exists():
    found = {label(*claim): missing(claim[1].get("where", []) + claim[1].get("tests", [])) for claim in CLAIMS}
    assert {name: places for name, places in found.items() if places} == {}


def test_each_row_of_the_benchmark_that_is_named_is_one():
    rows = (ROOT / "docs" / "design" / "record.md").read_text(encoding="utf-8")
    reasons = " ".join(claim.get("why", "") for _, claim in CLAIMS)
    named = set(re.findall(r"`([a-z0-9+]+(?:-[a-z0-9+]+)+)`", reasons))
    assert len(named) > 10
    assert [name for name in named if f"`{name}`" not in rows] == []


def test_what_does_not_exist_is_seen():
    here = "tools/from_designs.py"
    assert missing([f"{here}: page", f"{here}: gone"]) == [(here, "gone")]
    assert missing(["tools/gone.py: page"]) == [("tools/gone.py", "page")]
    assert missing(["pyx/manytail/_entries.pyx: Entry.ack", "pyx/manytail/_eq_put.pxd: locked_link"]) == []
    assert missing(["pyx/manytail/_entries.pyx: Entry.acks", "pyx/manytail/_eq_put.pxd: list_append"]) != []
