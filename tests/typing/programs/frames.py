"""map_arrow: its results are record batches; its own options are checked."""

from typing import Any, assert_type

from manytail import Stats
from manytail.arrow import ArrowResults, ResultError, RowView, map_arrow


def length(row: RowView) -> int:
    return len(row["text"]) + len(row.text)


def use(table: Any, schema: Any) -> None:
    with map_arrow(length, table, schema, workers=4, key="text", errors="column", metrics=True) as results:
        assert_type(results, ArrowResults)
        assert_type(results.stats(), Stats)
        assert_type(results.error, BaseException | None)
        for batch in results:
            print(batch.num_rows)
        results.stop()
    map_arrow(length, table, schema, errors="return")  # error: arg-type, reportArgumentType
    map_arrow(length, table, schema, columns="keep")  # error: arg-type, reportArgumentType
    map_arrow(length, table)  # error: call-arg, reportCallIssue
    raise ResultError
