"""One Spark session for the whole package; everything here needs PySpark, so everything here is marked `spark`."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import functions as F
from support import notes as notes_module
from support.databases import database, postgresql, server, sqlite
from support.notes import Notes

from manytail.spark._java import prepare_environment

__all__ = ["database", "postgresql", "server", "sqlite"]

HERE = Path(__file__).parent
CONNECT = os.environ.get("MANYTAIL_CONNECT") == "1"  # test_elsewhere.py sets it
SETTINGS = ("spark.ui.enabled=false", "spark.ui.showConsoleProgress=false", "spark.log.level=OFF")
# A row of 100 MB is copied several times, so one GB is not enough.
JVM_ARGUMENTS = f"--driver-memory 3g {' '.join(f'--conf {setting}' for setting in SETTINGS)} pyspark-shell"
register_pickle_by_value(notes_module)  # workers cannot import it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("udf") and not hasattr(F, "arrow_udf"):
            item.add_marker(pytest.mark.skip(reason="concurrent_udf needs PySpark 4.1"))


def prepare() -> None:
    """A Java, and this interpreter for the workers."""
    prepare_environment()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """local[2], quiet, with few shuffle partitions; through Spark Connect if MANYTAIL_CONNECT=1."""
    prepare()
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", JVM_ARGUMENTS)
        if CONNECT:
            os.environ["SPARK_TESTING"] = "1"  # the server listens on a free port, and the client asks it for that
        session = (
            (SparkSession.builder.remote if CONNECT else SparkSession.builder.master)("local[2]")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "America/New_York")
            .getOrCreate()
        )
    yield session
    session.stop()


@pytest.fixture
def conf(spark: Any) -> Iterator[Any]:
    """Set options of the session for one test: conf(name, value)."""
    changed: dict[str, str | None] = {}

    def change(name: str, value: Any) -> None:
        changed.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, str(value))

    yield change
    for name, value in changed.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """A place where functions in worker processes leave lines for the test."""
    return Notes(tmp_path / "notes")
