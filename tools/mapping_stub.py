"""Writes the stub of manytail.mapping: overloads of the maps by fn (async or not), batch and errors, with the options
of the one table, `manytail.mapping._options.OPTIONS`.

    python tools/mapping_stub.py            writes it
    python tools/mapping_stub.py --check    fails if the file is another
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

from manytail.mapping._options import OPTIONS

STUB = Path(__file__).resolve().parents[1] / "python" / "manytail" / "mapping" / "__init__.pyi"
WIDTH = 120
HEAD = '''\
"""Types of the maps: overloads by what fn is, by `batch` and by `errors`. Docstrings say what each option does.
Written by tools/mapping_stub.py.

fn may have further parameters: `delivery`, `resource`, and what has a default.
"""

from collections.abc import AsyncIterable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Concatenate, Literal, TypeAlias, TypeVar, overload

from ._limits import Budget, Concurrency, Limit, Rate
from ._map import AsyncResults, Results
from ._policies import Batch, Breaker, On, Retry
from ._shared import Shared
from ._types import (
    BreakerOpen,
    BudgetExceeded,
    DeadlineExceeded,
    Delivery,
    Outcome,
    Quantiles,
    RetryLater,
    SharedUnavailable,
    Stats,
    TooManyFailures,
)

__all__ = [
    "AsyncResults", "Batch", "Breaker", "BreakerOpen", "Budget", "BudgetExceeded", "Concurrency", "DeadlineExceeded",
    "Delivery", "Limit", "Outcome", "Quantiles", "Rate", "Results", "Retry", "RetryLater", "Shared",
    "SharedUnavailable", "Stats", "TooManyFailures", "aconcurrent_map", "concurrent_map",
]  # fmt: skip

_T = TypeVar("_T")
_R = TypeVar("_R")

# Both forms: mypy refuses lambdas for the second, which is for functions with further parameters.
_Call: TypeAlias = Callable[[_T], _R] | Callable[Concatenate[_T, ...], _R]
_AsyncCall: TypeAlias = _Call[_T, Coroutine[Any, Any, _R]]
'''
# What an overload says of options of which the result's type depends.
BATCH = {False: "batch: None = None", True: "batch: int | Batch"}
ERRORS = {False: 'errors: Literal["raise", "drop"] = "raise"', True: 'errors: Literal["return"]'}


def shown(default: object) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


def overload(name: str, is_async: bool, batched: bool, returns: bool) -> str:
    own = {"batch": BATCH[batched], "errors": ERRORS[returns]}
    options = [own.get(one.name, f"{one.name}: {one.kind} = {shown(one.default)}") for one in OPTIONS]
    gets, gives = ("list[_T]", "Sequence[_R | BaseException]") if batched else ("_T", "_R")
    items = "Iterable[_T]" if name == "concurrent_map" else "Iterable[_T] | AsyncIterable[_T]"
    result = "Results" if name == "concurrent_map" else "AsyncResults"
    lines = [f"    fn: {'_AsyncCall' if is_async else '_Call'}[{gets}, {gives}], items: {items}, *,"]
    line = "   "
    for one in options:
        if len(line) + len(one) + 2 > WIDTH:
            lines.append(line)
            line = "   "
        line += f" {one},"
    lines.append(line)
    end = f") -> {result}[{'Outcome[_T, _R]' if returns else '_R'}]: ..."
    return "\n".join(["@overload", f"def {name}(", *lines, end])


def stub() -> str:
    kinds = [
        (name, is_async, batched, returns)
        for name, batched, is_async, returns in product(
            ("concurrent_map", "aconcurrent_map"), (False, True), (True, False), (False, True)
        )
        if is_async or name == "concurrent_map"
    ]
    return "\n".join([HEAD, *(overload(*kind) for kind in kinds)]) + "\n"


def main() -> None:
    if "--check" not in sys.argv[1:]:
        STUB.write_text(stub(), encoding="utf-8")
    elif STUB.read_text(encoding="utf-8") != stub():
        sys.exit(f"{STUB} is not what tools/mapping_stub.py writes: run it")


if __name__ == "__main__":
    main()
