"""What an editor shows of a name: jedi reads the sources, and pyright the stubs; `help` has what the module has."""

import ast
import inspect
import re
import sys
from pathlib import Path

import pytest
from support.process import run_command

import manytail
from manytail import _maps

from .language_server import opened

ROOT = Path(__file__).parents[2]
STUB = Path(manytail.__path__[0]) / "mapping" / "__init__.pyi"
MAPS = ["concurrent_map", "aconcurrent_map", "Caller", "AsyncCaller"]


@pytest.mark.thread_unsafe(reason="jedi has a cache of the process")
@pytest.mark.parametrize("name", [*MAPS, "MultiQueue"])
def test_jedi_shows_the_prose(name: str) -> None:
    jedi = pytest.importorskip("jedi", reason="the free-threaded interpreter has no IPython")
    (found,) = jedi.Script(f"from manytail import {name}\n{name}").help(2, 3)
    first = (inspect.getdoc(getattr(manytail, name)) or "").partition("\n")[0]
    assert found.docstring(raw=True).startswith(first)
    assert "{options}" not in found.docstring()


@pytest.mark.parametrize("name", MAPS)
def test_the_stub_has_the_docstring_once(name: str) -> None:
    text = inspect.cleandoc(getattr(manytail, name).__doc__)
    stub = "\n".join(line.removeprefix("    ") for line in STUB.read_text(encoding="utf-8").splitlines())
    assert stub.count(text) == 1
    assert "Options: those of" not in text
    if name != "aconcurrent_map":
        assert "\nmax_in_flight: " in text


def test_the_stubs_of_compiled_queues_have_their_docstrings() -> None:
    tool = ROOT / "tools" / "stub_docstrings.py"
    ran = run_command(sys.executable, tool, "--check")
    assert (ran.returncode, ran.stderr) == (0, "")
    stub = (STUB.parents[1] / "_multiqueue.pyi").read_text(encoding="utf-8")
    assert "Many sub-queues that you read as one queue" in stub


@pytest.mark.thread_unsafe(reason="jedi has a cache of the process")
def test_jedi_shows_the_prose_of_a_compiled_method() -> None:
    jedi = pytest.importorskip("jedi", reason="the free-threaded interpreter has no IPython")
    (found,) = jedi.Script("from manytail import MultiQueue\nMultiQueue.setdefault").help(2, 14)
    assert "created atomically if it does not exist" in found.docstring()


HOVERED = """\
from manytail import AsyncCaller, Caller, MultiQueue, aconcurrent_map, concurrent_map
concurrent_map
aconcurrent_map
Caller
AsyncCaller
MultiQueue
concurrent_map(str.upper, ["a"])
from manytail.arrow import map_arrow
map_arrow
"""


@pytest.mark.thread_unsafe(reason="starts a process")
def test_pyright_shows_the_prose() -> None:
    pytest.importorskip("pyright", reason="the free-threaded interpreter has no pyright")
    with opened(Path(sys.executable).with_name("pyright-langserver"), ROOT, HOVERED) as shown:
        texts = [shown(line, 2) for line in range(1, 7)]
        of_arrow = shown(8, 2)
    names = [*MAPS, "MultiQueue", "concurrent_map"]
    firsts = [inspect.getdoc(getattr(manytail, name)).partition("\n")[0] for name in names]  # type: ignore[union-attr]
    assert [first for first, text in zip(firsts, texts, strict=True) if first not in text] == []
    assert "max_in_flight: the maximum number of items taken" in texts[0]
    options = inspect.signature(manytail.concurrent_map).parameters.values()
    defaults = [(one.name, one.default) for one in options if one.name not in ("fn", "items")]
    written = {name: re.search(rf"\b{name}: .* = (.*?),?\n", of_arrow) for name, _ in defaults}
    shown_defaults = [(name, ast.literal_eval(found[1])) for name, found in written.items() if found]
    assert shown_defaults == defaults, of_arrow


@pytest.mark.thread_unsafe(reason="jedi has a cache of the process")
@pytest.mark.parametrize("name", MAPS)
def test_jedi_shows_the_options_of_the_maps_that_are_built_anew(name: str) -> None:
    jedi = pytest.importorskip("jedi", reason="the free-threaded interpreter has no IPython")
    (signature,) = jedi.Script(f"from manytail._maps import {name}\n{name}(").get_signatures(2, len(name) + 1)
    shown = {one.name: one.description.partition("=")[2] for one in signature.params}
    for option in inspect.signature(getattr(_maps, name)).parameters.values():
        assert option.name in shown
        if option.kind is option.KEYWORD_ONLY:
            assert ast.literal_eval(shown[option.name]) == option.default


@pytest.mark.thread_unsafe(reason="starts a process")
def test_pyright_shows_the_options_of_the_maps_that_are_built_anew() -> None:
    pytest.importorskip("pyright", reason="the free-threaded interpreter has no pyright")
    program = f"from manytail._maps import {', '.join(MAPS)}\n" + "\n".join(MAPS) + "\n"
    with opened(Path(sys.executable).with_name("pyright-langserver"), ROOT, program) as shown:
        texts = [shown(line, 2) for line in range(1, 5)]
    for name, text in zip(MAPS, texts, strict=True):
        for option in inspect.signature(getattr(_maps, name)).parameters.values():
            if option.kind is option.KEYWORD_ONLY:
                written = re.search(rf"\b{option.name}: .* = (.*?),?\n", text)
                assert written is not None, (name, option.name, text)
                assert ast.literal_eval(written[1]) == option.default
    assert "max_in_flight: the maximum number of items taken" in texts[0]


def test_inspect_shows_the_options_of_map_arrow() -> None:
    arrow = pytest.importorskip("manytail.arrow", reason="the free-threaded interpreter has no PyArrow")
    shown = inspect.signature(arrow.map_arrow).parameters
    options = inspect.signature(manytail.concurrent_map).parameters
    assert list(options.keys() - shown.keys()) == ["items"]
    assert {name: shown[name].default for name in options if name != "items"} == {
        name: options[name].default for name in options if name != "items"
    }
    assert shown["errors"].annotation.count("column") == 1
