"""One Spark session for the whole package; everything here needs PySpark, so everything here is marked `spark`."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import register_pickle_by_value
from support import notes as notes_module
from support.databases import database, postgresql, server, sqlite
from support.notes import Notes

from manytail.spark._java import prepare_environment

__all__ = ["database", "postgresql", "server", "sqlite"]

HERE = Path(__file__).parent
register_pickle_by_value(notes_module)  # workers cannot import it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


def prepare() -> None:
    """A Java, and this interpreter for the workers."""
    prepare_environment()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """local[2], quiet, with few shuffle partitions."""
    prepare()
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("manytail tests")
        .config("spark.driver.memory", "3g")  # a row of 100 MB is copied several times
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.log.level", "OFF")
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
