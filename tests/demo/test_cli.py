"""The command lines of both demos: their options, and what it says where the extra is not installed."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import manytail
from manytail.demo.cli import PACKAGES


def test_without_the_extra_it_says_what_is_missing_and_the_command_that_brings_it(bare, tmp_path):
    ran = bare("demo", "--spark")
    assert ran.returncode == 2
    assert ran.stdout == ""
    command = f"{sys.executable} -m pip install {PACKAGES}"
    advice = rf"Install all that it needs with:\n    {re.escape(command)}\n"
    expected = rf"manytail demo needs \w+, which this Python does not have. {advice}"
    assert re.fullmatch(expected, ran.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["manytail"]


def test_without_the_extra_there_is_help(bare):
    for arguments in (["--help"], ["demo", "--help"], ["demo", "--spark", "--help"]):
        ran = bare(*arguments)
        assert ran.returncode == 0
        assert ran.stdout.startswith("usage: python -m manytail")
        assert ran.stderr == ""


def test_the_extra_brings_every_module_that_the_demo_imports():
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {re.split(r"\W", needed)[0] for needed in extras["demo"] + extras["spark"] + extras["arrow"]}
    nodes = [
        node
        for path in (Path(manytail.__file__).parent / "demo").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    imported = {name.split(".")[0] for name in names}
    brought |= {"numpy", "py4j"}  # dependencies of pandas and of pyspark
    assert imported - set(sys.stdlib_module_names) - {"manytail"} <= brought


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["demo", "--spark", "--month", "13"], "--month: invalid choice: 13"),
        (["demo", "--spark", "--month", "2", "--all"], "--all: not allowed with argument --month"),
        (["demo", "--spark", "--rows", "0"], "--rows: 0 (expected: 1 or more)"),
        (["demo", "--spark", "--workers", "-3"], "--workers: -3 (expected: 1 or more)"),
        (["demo", "--spark", "--per-key", "none"], "--per-key: invalid int value: 'none'"),
        (["demo", "--items", "20"], "--items: 20 (expected: 150 or more)"),
        ([], "usage: python -m manytail COMMAND"),
        (["dmeo"], "usage: python -m manytail COMMAND"),
    ],
    ids=str,
)
def test_wrong_options_are_named(bare, arguments, complaint):
    ran = bare(*arguments)
    assert ran.returncode == 2
    assert complaint in ran.stderr
