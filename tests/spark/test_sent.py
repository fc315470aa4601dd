"""manytail.spark._sent: how work is pickled for the tasks. scripts/cluster.py runs it in a Python without manytail."""

import os
import pickle
import platform
import subprocess
import sys
import types
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark import cloudpickle

import manytail
from manytail.spark import map_concurrent
from manytail.spark._sent import Sent


@dataclass(frozen=True)
class Sum(Sent):
    first: Any
    second: int = 1

    def total(self) -> Any:
        return self.first() + self.second


@dataclass(frozen=True)
class Subclass(Sum):
    third: int = 0


def test_it_arrives_as_it_was_sent() -> None:
    five = 5
    received = pickle.loads(cloudpickle.dumps(Subclass(lambda: five, third=3)))
    assert (type(received), received.total(), received.third) == (Subclass, 6, 3)


def test_the_reader_needs_no_module_of_ours_to_be_unpickled() -> None:
    """Where manytail cannot be imported, the reader alone can be read, and says what is wrong."""
    program = """
import sys
sys.modules["manytail"] = None  # its import fails
import pickle
try:
    pickle.loads(sys.stdin.buffer.read())
except ImportError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    sent = cloudpickle.dumps(Sum(1))
    ran = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, env=environment, check=True)
    said = ran.stdout.decode()
    assert f"Python of this Spark worker: {sys.executable}, {platform.python_version()} " in said, (said, ran.stderr)
    assert f"the driver's, {sys.executable}, {platform.python_version()}, with manytail {manytail.__version__}" in said
    assert "Set PYSPARK_PYTHON or spark.pyspark.python" in said


def test_a_module_that_the_worker_lacks_is_reported_with_both_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("of_the_driver")
    exec("def one(): return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "of_the_driver", module)
    sent = cloudpickle.dumps(Sum(module.one))  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "of_the_driver")
    with pytest.raises(ModuleNotFoundError, match="of_the_driver") as raised:
        pickle.loads(sent)
    (note,) = raised.value.__notes__
    assert note.startswith(f"manytail: in the Python of this Spark worker: {sys.executable}, ")
    assert f"that of the driver: {sys.executable}, " in note


def test_broadcast_variables_are_sent(spark: Any) -> None:
    """They register with Spark while it pickles the function, or their values do not reach the tasks."""
    numbers = spark.sparkContext.broadcast([10, 20, 30])
    rows = spark.range(3).transform(map_concurrent, lambda row: numbers.value[row.id], "x long").collect()
    assert [row.x for row in rows] == [10, 20, 30]
