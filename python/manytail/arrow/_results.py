"""Results: from what a function returns to Arrow columns of the result schema.

The worker that got a result checks it, because a result that does not fit is a failure of its row, like an exception.
A result that passes is clean (`_fits`): the columns of an output batch are built from clean values without further
checks. A result of several columns is a struct.
"""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from manytail import ManytailError

from ._fits import Fit, Misfit, fit_of, struct_fit
from ._types import column_type, plain_type


class ResultError(ManytailError, TypeError):
    """The result of a function does not fit the result schema. The message names the row's key and the column. It is
    never retried."""

    __module__ = "manytail.arrow"


class ResultSchema:
    """A result schema, which checks results and builds columns from them.

    `fit` is a faster version of `check`: for a result that it accepts, both return the same clean value. `check` may
    accept a result that `fit` refuses. If the schema is a single column that is not nested, `fit` is the column's own.
    """

    fit: Fit

    def __init__(self, schema: pa.Schema, zone: datetime.tzinfo, *, by_value: bool = False) -> None:
        """zone: of naive datetimes for a type with a time zone. by_value: the result is always the value of the only
        column. TypeError, ValueError: the types cannot be results."""
        self.fields = [field.with_type(column_type(field.type)) for field in schema]
        self._names = schema.names
        self._single = len(schema) == 1
        kind = schema.field(0).type if self._single else pa.struct(list(schema))
        self._fit = fit_of(kind, zone) if self._single else struct_fit(list(schema), zone)
        self._built = column_type(kind)
        try:
            pa.array([], self._built)
        except pa.ArrowNotImplementedError:  # of extension types in others, and of some dictionaries
            self._built = plain_type(kind)
        self._required = [field.name for field in schema if not field.nullable]
        self.none_fits = not self._required
        self.varies = not all(pa.types.is_primitive(field.type) for field in schema)  # the size of results
        self.fixed_bytes = 8 if self._single else 8 + 8 * len(schema)  # of a result, or the least
        self._unwraps = self._single and not by_value
        leaf = self._single and not isinstance(kind, pa.BaseExtensionType) and not pa.types.is_nested(kind)
        self.fit = self._fit if leaf or not self._unwraps else self._clean

    def check(self, value: Any, shown_key: Callable[[], Any]) -> Any:
        """Return the clean value of a result. Raises ResultError if the result does not fit, and TypeError if it is an
        awaitable."""
        try:
            return self._clean(value)
        except Misfit as misfit:
            _refuse_awaitable(value)
            raise ResultError(f"{misfit} (key {shown_key()!r})") from misfit.__cause__

    def _clean(self, value: Any) -> Any:
        try:
            if self._unwraps:
                value = self._unwrapped(value)
            if value is not None:
                return self._fit(value)
        except Misfit as misfit:
            if self._single:
                misfit.path.insert(0, self._names[0])
            misfit.path = misfit.path or [", ".join(self._names)]
            raise
        if self._required:
            raise Misfit(None, "not None", self._required[0])
        return None

    def _unwrapped(self, value: Any) -> Any:
        """The only column's value: of a tuple of one, or of a Row or mapping whose one name is the column's."""
        name = self._names[0]
        if isinstance(value, tuple) and list(getattr(value, "__fields__", [name])) == [name]:
            if len(value) != 1:
                raise Misfit(value, "a tuple of 1")
            return value[0]
        return value[name] if isinstance(value, (dict, Mapping)) and len(value) == 1 and name in value else value

    def columns(self, values: list[Any]) -> list[pa.Array]:
        """Build one column per field from clean results."""
        array = pa.array(values, self._built)
        arrays = [array] if self._single else array.flatten()
        pairs = zip(arrays, self.fields, strict=True)
        return [each if each.type == field.type else each.cast(field.type) for each, field in pairs]


def _refuse_awaitable(value: Any) -> None:
    """TypeError if the result is an awaitable, usually the coroutine of a function that is not `async def`."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # otherwise Python warns that it was never awaited
        raise TypeError(
            f"a function that is not `async def` returned an awaitable ({type(value).__qualname__})"
        ) from None


def result_bytes(value: Any) -> int:
    """The approximate memory of a clean result, in bytes: 8 for each value, and the length of its texts and bytes."""
    if isinstance(value, (str, bytes)):
        return 8 + len(value)
    if isinstance(value, (list, tuple)):
        return 8 + sum(map(result_bytes, value))
    if isinstance(value, dict):
        return 8 + sum(map(result_bytes, value.values()))
    return 8


# ---------------------------------------------------------------------------------------------------- failures
ERROR = pa.struct({"type": pa.string(), "message": pa.string(), "attempts": pa.int32(), "key": pa.string()})
MESSAGE_LIMIT = 4_000


class Described(NamedTuple):
    """Why a row has no result: fields of the error column. Its field `key` is added where the column is built."""

    type: str
    message: str
    attempts: int


def describe(error: BaseException, attempts: int) -> Described:
    """Return the error as text that fits an Arrow string: at most 4,000 characters without lone surrogates, even if
    `str(error)` itself fails."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except BaseException as inner:
        message = f"<no message: str() of it raised {type(inner).__qualname__}>"
    message = message[:MESSAGE_LIMIT].encode("utf-8", "replace").decode("utf-8")
    return Described(name, message, attempts)
