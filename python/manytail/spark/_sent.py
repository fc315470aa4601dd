"""How what runs in a task is pickled: so that a worker whose Python is not the driver's can say so.

A class of ours is pickled as its name, and the import of manytail would fail inside the unpickler, before any line of
ours runs. So a `Sent` is pickled as two things: a small function, which cloudpickle sends by value because it is local
to another, and the bytes of the object. The function needs only the standard library. It imports manytail, then reads
the bytes; if either fails, the error names the worker's Python and the driver's. Whether the minor versions are equal
PySpark has compared before that.

The bytes are made while Spark pickles the object, not earlier: broadcast variables in them register then.
"""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from pyspark import cloudpickle

import manytail


class Sent:
    """The base of a dataclass that is sent to the tasks."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        here = f"{sys.executable}, {platform.python_version()}, with manytail {manytail.__version__}"
        sent: bytes = cloudpickle.dumps(functools.partial(type(self), **values))  # type: ignore[no-untyped-call]
        return _reader(), (sent, here)


def _reader() -> Callable[[bytes, str], Any]:
    def read(sent: bytes, driver: str) -> Any:
        import pickle
        import platform
        import sys

        here = f"{sys.executable}, {platform.python_version()}"
        try:
            import manytail.spark
        except ImportError as error:
            raise type(error)(
                f"manytail.spark cannot be imported by the Python of this Spark worker: {here} (expected: a Python "
                f"like the driver's, {driver}): {error}. Set PYSPARK_PYTHON or spark.pyspark.python to one with "
                "manytail, or call manytail.spark.bootstrap(spark) before the first job",
                name=error.name,
                path=error.path,
            ) from error
        try:
            return pickle.loads(sent)()
        except Exception as error:
            found = f"{here}, with manytail {manytail.__version__}"
            error.add_note(f"manytail: in the Python of this Spark worker: {found}; that of the driver: {driver}")
            raise

    return read
