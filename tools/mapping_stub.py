"""Writes the stub of manytail.mapping: overloads of the maps by fn (async or not), batch and errors, and of the Callers
by fn and batch, with the options of their signatures. Editors read it, so it has the docstrings, too; of a map in its
first overload.

    python tools/mapping_stub.py            writes it
    python tools/mapping_stub.py --check    fails if the file is another
"""

from __future__ import annotations

import inspect
import sys
from itertools import product
from pathlib import Path

from manytail import mapping

STUB = Path(__file__).resolve().parents[1] / "python" / "manytail" / "mapping" / "__init__.pyi"
WIDTH = 120
HEAD = '''\
"""Types of the maps and Callers: overloads by what fn is, by `batch` and by `errors`. Docstrings say what each option
does. Written by tools/mapping_stub.py.

fn may have further parameters: `delivery`, `resource`, and what has a default.
"""

from collections.abc import AsyncIterable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from typing import Any, Concatenate, Generic, Literal, Self, TypeAlias, TypeVar, overload

from ._limits import Budget, Concurrency, Limit, Rate
from ._map import AsyncResults, Results
from ._policies import Batch, Breaker, Retry
from ._policies import On as On
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
    "AsyncCaller", "AsyncResults", "Batch", "Breaker", "BreakerOpen", "Budget", "BudgetExceeded", "Caller",
    "Concurrency", "DeadlineExceeded", "Delivery", "Limit", "Outcome", "Quantiles", "Rate", "Results", "Retry",
    "RetryLater", "Shared", "SharedUnavailable", "Stats", "TooManyFailures", "aconcurrent_map", "concurrent_map",
]  # fmt: skip

_T = TypeVar("_T")
_R = TypeVar("_R")

# Both forms: mypy refuses lambdas for the second, which is for functions with further parameters.
_Call: TypeAlias = Callable[[_T], _R] | Callable[Concatenate[_T, ...], _R]
_AsyncCall: TypeAlias = _Call[_T, Coroutine[Any, Any, _R]]
'''
CALLER = '''\
    def __call__(self, item: _T) -> _R: ...
    def submit(self, item: _T) -> Future[_R]: ...
    def stats(self) -> Stats: ...
    def close(self, *, cancel: bool = False) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, *error: object) -> None: ...
'''
ASYNC_CALLER = '''\
    async def __call__(self, item: _T) -> _R: ...
    def stats(self) -> Stats: ...
    async def aclose(self, *, cancel: bool = False) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, kind: object, *error: object) -> None: ...
'''
# What an overload says of options of which the result's type depends.
BATCH = {False: "batch: None = None", True: "batch: int | Batch"}
ERRORS = {False: 'errors: Literal["raise", "drop"] = "raise"', True: 'errors: Literal["return"]'}


def shown(default: object) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


def function_type(is_async: bool, batched: bool) -> str:
    gets, gives = ("list[_T]", "Sequence[_R | BaseException]") if batched else ("_T", "_R")
    return f"{'_AsyncCall' if is_async else '_Call'}[{gets}, {gives}]"


def listed(function: object, batched: bool, returns: bool, indent: str) -> list[str]:
    """Lines with the options of a map or a Caller."""
    own = {"batch": BATCH[batched], "errors": ERRORS[returns]}
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    options = [
        own.get(one.name, f"{one.name}: {one.annotation} = {shown(one.default)}".replace("'", '"'))
        for one in parameters
        if one.kind is one.KEYWORD_ONLY
    ]
    lines, line = [], indent
    for one in options:
        if len(line) + len(one) + 2 > WIDTH:
            lines.append(line)
            line = indent
        line += f" {one},"
    return [*lines, line]


def docstring(thing: object) -> list[str]:
    """Of a map or a Caller, as the lines of a body."""
    lines = (inspect.getdoc(thing) or "").replace("\\", "\\\\").splitlines()
    ends = [f"{lines[0]}\"\"\""] if len(lines) == 1 else [lines[0], *lines[1:], '"""']
    return [f'    """{ends[0]}', *(f"    {line}" if line else "" for line in ends[1:])]


def overload(name: str, is_async: bool, batched: bool, returns: bool, first_of_all: bool) -> str:
    items = "Iterable[_T]" if name == "concurrent_map" else "Iterable[_T] | AsyncIterable[_T]"
    result = "Results" if name == "concurrent_map" else "AsyncResults"
    first = f"    fn: {function_type(is_async, batched)}, items: {items}, *,"
    end = f") -> {result}[{'Outcome[_T, _R]' if returns else '_R'}]:"
    body = [end, *docstring(getattr(mapping, name))] if first_of_all else [f"{end} ..."]
    options = listed(getattr(mapping, name), batched, returns, "   ")
    return "\n".join(["@overload", f"def {name}(", first, *options, *body])


def caller(name: str, methods: str) -> str:
    lines = [f"class {name}(Generic[_T, _R]):", *docstring(getattr(mapping, name))]
    for batched, is_async in product((False, True), (True, False) if name == "Caller" else (True,)):
        lines += ["    @overload", "    def __init__("]
        lines += [f"        self: {name}[_T, _R], fn: {function_type(is_async, batched)}, *,"]
        lines += [*listed(getattr(mapping, name), batched, False, "       "), "    ) -> None: ..."]
    return "\n".join([*lines, methods.rstrip("\n")])


def stub() -> str:
    kinds = [
        (name, is_async, batched, returns)
        for name, batched, is_async, returns in product(
            ("concurrent_map", "aconcurrent_map"), (False, True), (True, False), (False, True)
        )
        if is_async or name == "concurrent_map"
    ]
    firsts = {kind[0]: kind for kind in reversed(kinds)}
    callers = [caller("Caller", CALLER), caller("AsyncCaller", ASYNC_CALLER)]
    maps = [overload(*kind, kind == firsts[kind[0]]) for kind in kinds]
    return "\n".join([HEAD, *maps, "", "\n\n".join(callers)]) + "\n"


def main() -> None:
    if "--check" not in sys.argv[1:]:
        STUB.write_text(stub(), encoding="utf-8")
    elif STUB.read_text(encoding="utf-8") != stub():
        sys.exit(f"{STUB} is not what tools/mapping_stub.py writes: run it")


if __name__ == "__main__":
    main()
