"""What every public class has, or has not."""
import inspect

import pytest
from samples import public_classes

CLASSES = dict(public_classes())
# They hold users' objects, so they take the types of these in brackets.
GENERIC = [name for name in CLASSES if name.count(".") == 1 or name.startswith("manytail.queue.")]


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_it_has_no_length_and_is_true(kind):
    assert not hasattr(kind, "__len__")
    assert not hasattr(kind, "__bool__")


@pytest.mark.parametrize("kind", [CLASSES[name] for name in GENERIC], ids=GENERIC)
def test_it_takes_types_in_brackets(kind):
    assert kind[int].__origin__ is kind
    assert kind[int].__args__ == (int,)


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_its_public_methods_have_docstrings(kind):
    methods = inspect.getmembers(kind, lambda it: callable(it) and not isinstance(it, type))
    assert [name for name, method in methods if not name.startswith("_") and not inspect.getdoc(method)] == []
