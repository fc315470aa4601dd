"""Concurrent, ordered, fair and loss-free work inside PySpark partitions.

`map_concurrent` is for `df.transform`, `concurrent_udf` makes a column function, `fan_out` feeds several sinks in one
pass over the rows. All need PySpark with pyarrow: `pip install 'manytail[spark]'`.
"""

from manytail.arrow import ResultError, RowView
from manytail.mapping import DeadlineExceeded, Delivery, RetryLater

from ._bootstrap import bootstrap
from ._fan_out import fan_out
from ._progress import progress
from ._transform import map_concurrent
from ._udf import concurrent_udf

__all__ = [
    "DeadlineExceeded", "Delivery", "ResultError", "RetryLater", "RowView",
    "bootstrap", "concurrent_udf", "fan_out", "map_concurrent", "progress",
]  # fmt: skip
