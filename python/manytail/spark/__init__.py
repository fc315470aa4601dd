"""Concurrent, ordered, fair and loss-free work inside PySpark partitions.

`map_concurrent` is for `df.transform`, `concurrent_udf` makes a column function, `fan_out` feeds several sinks in one
pass over the rows. All need PySpark with pyarrow: `pip install 'pyspark>=4.0,<5' 'pyarrow>=18' 'pandas>=2.2,<3'`.
`prepare_environment` finds a Java for a session on this machine.
"""

try:
    from manytail.arrow import ResultError, RowView
    from manytail.mapping import DeadlineExceeded, Delivery, RetryLater

    from ._bootstrap import bootstrap
    from ._fan_out import fan_out
    from ._java import JavaNotFoundError, prepare_environment
    from ._progress import progress
    from ._transform import map_concurrent
    from ._udf import concurrent_udf
except ModuleNotFoundError as error:
    if error.name not in ("pyspark", "pyarrow", "pandas"):
        raise
    needs = "manytail.spark needs PySpark with pyarrow: pip install 'pyspark>=4.0,<5' 'pyarrow>=18' 'pandas>=2.2,<3'"
    raise ModuleNotFoundError(f"{needs} ({error.name} is missing)", name=error.name) from error

__all__ = [
    "DeadlineExceeded", "Delivery", "JavaNotFoundError", "ResultError", "RetryLater", "RowView",
    "bootstrap", "concurrent_udf", "fan_out", "map_concurrent", "prepare_environment", "progress",
]  # fmt: skip
