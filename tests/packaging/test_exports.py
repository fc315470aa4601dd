"""What `import manytail` exports, what the stubs say, and what the compiled modules have: the same."""

import inspect
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "manytail"


def test_all_is_complete_and_without_repeats():
    import manytail

    assert len(manytail.__all__) == len(set(manytail.__all__))
    ours = {
        name
        for name, value in vars(manytail).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("manytail")
    }
    assert ours <= set(manytail.__all__)
    assert all(hasattr(manytail, name) for name in manytail.__all__)


def test_what_is_exported_has_a_docstring():
    import manytail

    exported = {name: getattr(manytail, name) for name in manytail.__all__}
    bare = [
        name
        for name, value in exported.items()
        if (inspect.isclass(value) or callable(value)) and not inspect.getdoc(value)
    ]
    assert bare == []


def test_the_version_is_one():
    import manytail
    from manytail import _version

    assert manytail.__version__ == _version.__version__
