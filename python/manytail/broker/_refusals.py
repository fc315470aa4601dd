"""How the broker says no: a reply code and a text, raised inside it and turned into the closing of a channel or a connection at its surface."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["Refused", "access_refused", "not_allowed", "not_found", "not_implemented", "precondition_failed", "resource_locked"]


class Refused(Exception):
    """Not for users: the surface makes ChannelClosedByBroker (4xx) or ConnectionClosedByBroker (5xx) of it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


def access_refused(text: str) -> NoReturn:
    raise Refused(403, f"ACCESS_REFUSED - {text}")


def not_found(kind: str, name: str) -> NoReturn:
    raise Refused(404, f"NOT_FOUND - no {kind} {name!r} in this broker")


def resource_locked(text: str) -> NoReturn:
    raise Refused(405, f"RESOURCE_LOCKED - {text}")


def precondition_failed(text: str) -> NoReturn:
    raise Refused(406, f"PRECONDITION_FAILED - {text}")


def command_invalid(text: str) -> NoReturn:
    raise Refused(503, f"COMMAND_INVALID - {text}")


def not_allowed(text: str) -> NoReturn:
    raise Refused(530, f"NOT_ALLOWED - {text}")


def not_implemented(text: str) -> NoReturn:
    raise Refused(540, f"NOT_IMPLEMENTED - {text}")
