"""Functions of the contract that a later version brings: they say so when they are called."""

from __future__ import annotations

from typing import Any, NoReturn


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(f"manytail.spark.{name} is not in this version")


def per_task(limit: int, df: Any, *, tasks: int | None = None) -> NoReturn:
    """Split a cluster-wide limit over the tasks. Not in this version."""
    _refuse("per_task")


def bootstrap(spark: Any, wheel: str | None = None) -> NoReturn:
    """Bring the compiled wheel to the executors. Not in this version."""
    _refuse("bootstrap")


def progress(spark: Any, address: str | None = None) -> NoReturn:
    """A live line while a job runs. Not in this version."""
    _refuse("progress")
