"""Users' errors and values, of whatever shape, without surprises: causes, notes, copies, short texts.

An exception may be frozen, have a `__repr__` or `__init__` that raises, or be false. None of that may get in the way of
what a map does with it, so attributes are set past the methods of its class.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from contextlib import suppress
from types import BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

_SHORT = 100  # characters of a text


class _Repr(reprlib.Repr):
    """Texts of about one line, made without the text of what is huge."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = _SHORT

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value) if len(value) <= _SHORT else f"{value[: _SHORT // 2]!r}... ({len(value)} bytes)"


def shortened(value: Any) -> str:
    """A text of the value, for messages. Its type, if it has none."""
    try:
        text = _Repr().repr(value)
        return text if len(text) <= 2 * _SHORT else f"{text[: 2 * _SHORT]}..."
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # the user's
        return f"<{type(value).__qualname__}>"


def set_cause(error: BaseException, cause: BaseException | None) -> None:
    """`error.__cause__ = cause`, also where a method of the class refuses it."""
    with suppress(Exception):  # the class has its own `__cause__`
        object.__setattr__(error, "__cause__", cause)


def add_note(error: BaseException, note: str) -> None:
    """Add a note, once."""
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list) and note not in notes:
        notes.append(note)
    elif notes is None:
        with suppress(Exception):
            object.__setattr__(error, "__notes__", [note])


def note_option(error: BaseException, option: str) -> None:
    """Say which of the user's functions has raised an error."""
    add_note(error, f"manytail: raised by the function of the option {option}")


def asked(option: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's function of an option. What it raises says so; an error that it was given and raises does not."""
    try:
        return function(*arguments)
    except BaseException as error:
        if not any(error is one for one in arguments):
            note_option(error, option)
        raise


def message_of(error: BaseException) -> str:
    """Its text; its type, if it has none."""
    try:
        return str(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return f"<{type(error).__qualname__}>"


def own_copy(error: BaseException) -> BaseException:
    """A copy with the same content, cause and traceback: what is added to one is not added to the other. It calls no
    `__init__`, which may take other arguments than `args` or change them. The error itself, if it cannot be copied."""
    kind = type(error)
    makers = [one for one in kind.__mro__ if isinstance(vars(one).get("__new__"), BuiltinFunctionType)]
    try:
        made: BaseException = makers[0].__new__(kind, *error.args)
        for name in _members(kind):
            if (value := getattr(error, name, None)) is not None:
                object.__setattr__(made, name, value)
        vars(made).update(vars(error))
        if isinstance(notes := vars(error).get("__notes__"), list):
            vars(made)["__notes__"] = notes.copy()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return error
    return BaseException.with_traceback(made, error.__traceback__)


def _members(kind: type) -> list[str]:
    """Attributes that are not in the `__dict__`: of exceptions in C, and of `__slots__`."""
    found = [
        name
        for one in kind.__mro__
        for name, member in vars(one).items()
        if isinstance(member, (MemberDescriptorType, GetSetDescriptorType)) and not name.startswith("__")
    ]
    return [*found, "__cause__", "__context__", "__suppress_context__"]
