"""Advice to install something names packages that an index has, and those that pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from support.process import run_script

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for folder in ("python", "pyx") for path in (ROOT / folder).rglob("*.py*")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ASKED = {text for extra in PROJECT["project"]["optional-dependencies"].values() for text in extra}
ASKED |= {"psycopg[binary]>=3.2", "psycopg[binary]"}  # psycopg with a libpq


def packages_of(extra: str) -> set[str]:
    """With those of the extras that it names."""
    found: set[str] = set()
    for text in PROJECT["project"]["optional-dependencies"][extra]:
        named = re.fullmatch(r"manytail\[(.*)\]", text)
        found |= {text} if named is None else set().union(*map(packages_of, named[1].split(",")))
    return found


def test_every_package_to_install_is_one_that_we_ask_for():
    advised = set()
    for path in [path for path in SOURCES if path.suffix in (".py", ".pyi", ".pyx")]:
        text = path.read_text(encoding="utf-8")
        assert "'manytail[" not in text, path  # no index has manytail
        for line in re.findall(r"pip install ((?:'[^'\s]+' ?)+)", text):
            advised.update(re.findall(r"'([^']+)'", line))
    assert {"lark>=1.2,<2", "pyarrow>=18", "psycopg[binary]>=3.2"} <= advised <= ASKED


def test_the_lists_of_packages_are_those_of_the_extras():
    from manytail import doctor
    from manytail.demo.cli import PACKAGES

    assert set(re.findall(r"'([^']+)'", PACKAGES)) == packages_of("demo")
    for extra, text in doctor.PACKAGES.items():
        assert {each.replace("[binary]", "") for each in re.findall(r"'([^']+)'", text)} == packages_of(extra)


@pytest.mark.parametrize(
    ("module", "missing"), [("arrow", "pyarrow"), ("arrow.engine", "pyarrow"), ("spark", "pyspark")]
)
def test_a_module_says_what_it_needs(module, missing):
    said = run_script(f"""
import sys
sys.modules[{missing!r}] = None
try:
    import manytail.{module}
except ModuleNotFoundError as error:
    print(error.name, error)
""")
    assert f" manytail.{module.partition('.')[0]} needs " in said
    assert "pip install '" in said
