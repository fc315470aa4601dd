"""`concurrent_map` on Arrow record batches, for every frame that gives and takes them: Polars, DuckDB, pandas, Ray
Data. `manytail.spark` is this inside mapInArrow, and `manytail.arrow.engine` has what it builds on.

Needs pyarrow: `pip install 'pyarrow>=18'`.
"""

try:
    from ._map import ArrowResults, map_arrow
    from ._results import ResultError
    from ._rows import RowView
except ModuleNotFoundError as error:
    if error.name != "pyarrow":
        raise
    raise ModuleNotFoundError("manytail.arrow needs pyarrow: pip install 'pyarrow>=18'", name="pyarrow") from error

__all__ = ["ArrowResults", "ResultError", "RowView", "map_arrow"]
