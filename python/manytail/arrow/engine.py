"""For engines that run maps over Arrow batches in tasks of their own and have their own Python values, as Spark does.

An engine checks options where a job is made (`check_options`), sends them with the function to its tasks, and there
runs an ArrowMap in a Host of its own.
"""

from ._map import check_name, check_options, run
from ._metrics import CALL, NAME
from ._results import ERROR, ResultSchema, describe
from ._task import ArrowMap, Host, refuse_equal_names
from ._types import PythonType, column_type, fields_of, zone_of

__all__ = [
    "CALL", "ERROR", "NAME", "ArrowMap", "Host", "PythonType", "ResultSchema", "check_name", "check_options",
    "column_type", "describe", "fields_of", "refuse_equal_names", "run", "zone_of",
]  # fmt: skip
