"""What `import manytail` exports, what the stubs say, and what the compiled modules have: the same."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "manytail"
MODULES = sorted(path.stem for path in (ROOT / "pyx" / "manytail").glob("*.pyx"))


def stub_names(module: str) -> set[str]:
    """Public names that a stub defines at its top level; what it imports for its own use is none of them."""
    found = set()
    for node in ast.parse((PACKAGE / f"{module}.pyi").read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_")}


def test_all_is_complete_and_without_repeats():
    import manytail

    assert len(manytail.__all__) == len(set(manytail.__all__))
    ours = {name for name, value in vars(manytail).items() if not name.startswith("_") and getattr(value, "__module__", "").startswith("manytail")}
    assert ours <= set(manytail.__all__)
    assert all(hasattr(manytail, name) for name in manytail.__all__)


def test_what_is_exported_has_a_docstring():
    import manytail

    exported = {name: getattr(manytail, name) for name in manytail.__all__}
    bare = [name for name, value in exported.items() if (inspect.isclass(value) or callable(value)) and not inspect.getdoc(value)]
    assert bare == []


def test_the_version_is_one():
    import manytail
    from manytail import _version

    assert manytail.__version__ == _version.__version__


@pytest.mark.parametrize("module", MODULES)
def test_a_stub_names_what_its_module_has(module):
    compiled = importlib.import_module(f"manytail.{module}")
    public = {name for name, value in vars(compiled).items() if getattr(value, "__module__", None) == compiled.__name__ and not name.startswith("_")}
    assert public <= stub_names(module)
    assert all(hasattr(compiled, name) for name in stub_names(module))


@pytest.mark.packaging
def test_stubtest_finds_no_difference():
    modules = [f"manytail.{module}" for module in MODULES]
    command = [sys.executable, "-m", "mypy.stubtest", *modules]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
