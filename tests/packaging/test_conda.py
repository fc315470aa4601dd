"""conda/recipe.yaml: rattler-build renders it, and it says what pyproject.toml says."""

import json
import tomllib
from pathlib import Path

import pytest
from support.environments import Environment

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "conda" / "recipe.yaml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

pytestmark = [pytest.mark.packaging, pytest.mark.thread_unsafe(reason="one environment for the module")]

# Prints each variant as JSON. The compiler and the C library are those that conda-forge names for Linux.
RENDER = """
import json, sys
from rattler_build import Stage0Recipe, VariantConfig

variants = {"c_compiler": ["gcc"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]}
variants["python"] = [f"{version}.* *_cpython" for version in ("3.11", "3.14")]
rendered = Stage0Recipe.from_file(sys.argv[1]).render(VariantConfig(variants))
print(json.dumps([variant.recipe.to_dict() for variant in rendered]))
"""


@pytest.fixture(scope="module")
def rattler(tmp_path_factory) -> Environment:
    """An environment with rattler-build's library. Nothing else of the tests needs it, so a machine that cannot have it
    passes, and says so."""
    environment = Environment.create(tmp_path_factory.mktemp("rattler"))
    try:
        environment.install("py-rattler-build>=0.73")
    except AssertionError as error:
        pytest.skip(f"the conda recipe is not rendered: pip cannot install py-rattler-build: {str(error)[-300:]}")
    return environment


@pytest.fixture(scope="module")
def variants(rattler) -> list[dict]:
    return json.loads(rattler.python("-c", RENDER, RECIPE))


def compact(requirements: list[str]) -> set[str]:
    return {requirement.replace(" ", "") for requirement in requirements}


def test_there_is_a_package_for_each_python(variants):
    assert [variant["build"]["string"][:5] for variant in variants] == ["py311", "py314"]
    assert {variant["package"]["name"] for variant in variants} == {PROJECT["project"]["name"]}


def test_the_version_is_the_project_s(variants):
    said: dict[str, str] = {}
    exec((ROOT / "python" / "manytail" / "_version.py").read_text(encoding="utf-8"), said)
    assert {variant["package"]["version"] for variant in variants} == {said["__version__"]}


def test_it_needs_what_the_project_needs(variants):
    for variant in variants:
        needs = variant["requirements"]
        assert compact(needs["host"]) == {"python", "pip", *compact(PROJECT["build-system"]["requires"])}
        assert needs["run"] == ["python", *PROJECT["project"]["dependencies"]]
        assert variant["about"]["license"] == PROJECT["project"]["license"]
        assert variant["about"]["license_file"] == PROJECT["project"]["license-files"]
        assert variant["about"]["summary"] == PROJECT["project"]["description"]
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert f'skip: match(python, "<{oldest}")' in RECIPE.read_text(encoding="utf-8")


def test_a_recipe_with_a_field_that_there_is_not_is_refused(rattler, tmp_path):
    wrong = tmp_path / "recipe.yaml"
    wrong.write_text(RECIPE.read_text(encoding="utf-8").replace("license_file:", "license_files:"), encoding="utf-8")
    with pytest.raises(AssertionError, match="license_files"):
        rattler.python("-c", RENDER, wrong)
