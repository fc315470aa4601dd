"""What `Retry.http` says of an error: whether its request is made again, and when.

No HTTP client is imported: what an error is, is told by the names that these clients use.

    status     an int of three digits named status_code (requests, httpx, openai, anthropic), status (aiohttp, urllib3)
               or code (urllib): of the error, of its `response`, or of the same of what caused it
    headers    of the error or of its `response`
    body       of an SDK's error; or what its `response` has read: it is not read here, which might wait
    cause      `__cause__`, or a `reason` that is an exception (urllib, urllib3)
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from string import digits
from typing import Any

from manytail._checks import bad_type, bad_value

from .outcomes import RetryLater

LARGEST_CAUSES = 10  # errors of a chain that are looked at
LARGEST_BODY = 65_536  # bytes of JSON that are looked at
SPENT = {"insufficient_quota", "billing_hard_limit_reached"}  # codes of a 429 that no waiting mends

# Errors without a status: the connection failed or broke, or the time was over. By the package, without the digits at
# its end (httpx2), and the name of a class.
BROKEN = {
    "builtins.ConnectionError", "builtins.TimeoutError", "socket.gaierror", "ssl.SSLError",
    "http.IncompleteRead", "http.BadStatusLine",
    "urllib.NewConnectionError", "urllib.ProtocolError", "urllib.TimeoutError", "urllib.SSLError",
    "requests.ConnectionError", "requests.Timeout", "requests.ChunkedEncodingError",
    "httpx.TimeoutException", "httpx.NetworkError", "httpx.RemoteProtocolError", "httpx.ProxyError",
    "aiohttp.ClientConnectionError", "aiohttp.ClientPayloadError",
}  # fmt: skip
UNREACHABLE = {  # of an OSError that is no ConnectionError
    errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL,
}  # fmt: skip


def answer_of(statuses: tuple[int, ...], error: BaseException) -> bool | RetryLater:
    """Whether the error is one of the connection or has one of the statuses. With a Retry-After: a RetryLater."""
    if not isinstance(error, Exception):
        return False
    for one in causes(error):
        status = status_of(one)
        if status is not None:
            if status not in statuses:
                return False
            after = retry_after(one)
            if after is None and status == 429 and is_spent(one):
                return False
            return True if after is None else RetryLater(after, f"status {status}, retry after {after:.3f} s")
        if is_broken(one):  # before its causes: aiohttp's parser says status 400 of what it cannot read
            return True
    return False


def check_statuses(option: str, value: Any) -> tuple[int, ...]:
    expected = "an iterable of HTTP statuses, ints from 100 to 599"
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise bad_type(option, value, expected)
    statuses = list(value)
    for status in statuses:
        if isinstance(status, bool) or not isinstance(status, int):
            raise bad_type(option, status, expected)
        if not 100 <= status <= 599:
            raise bad_value(option, status, expected)
    return tuple(sorted({int(status) for status in statuses}))


# ---------------------------------------------------------------------------------------------------- parts of an error
def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what caused it."""
    for _ in range(LARGEST_CAUSES):
        yield error
        reason = read(error, "reason")
        cause = reason if error.__cause__ is None and isinstance(reason, BaseException) else error.__cause__
        if cause is None:
            return
        error = cause


def read(place: Any, name: str) -> Any:
    """The attribute; None if there is none, or if it raises, as some properties of clients do."""
    try:
        return getattr(place, name, None)
    except Exception:
        return None


def status_of(error: BaseException) -> int | None:
    for place in (error, read(error, "response")):
        for name in ("status_code", "status", "code"):
            value = read(place, name)
            if isinstance(value, int) and not isinstance(value, bool):
                if 100 <= value <= 599:
                    return int(value)
                break
    return None


def is_spent(error: BaseException) -> bool:
    """Whether the body of a 429 says that there is no money left, as LLM APIs do: another request gets the same."""
    for place in (error, read(error, "body"), body_of(read(error, "response"))):
        for part in (place, place.get("error") if isinstance(place, dict) else None):
            said = [part.get(name) if isinstance(part, dict) else read(part, name) for name in ("code", "type")]
            if not SPENT.isdisjoint(one for one in said if isinstance(one, str)):
                return True
    return False


def body_of(response: Any) -> Any:
    """The JSON that a response of httpx or requests has read, or None."""
    data = read(response, "_content")
    try:
        return json.loads(data) if isinstance(data, bytes) and len(data) <= LARGEST_BODY else None
    except Exception:
        return None


def is_broken(error: BaseException) -> bool:
    """Whether the connection failed or broke, or the time was over."""
    names = {f"{kind.__module__.partition('.')[0].rstrip(digits)}.{kind.__name__}" for kind in type(error).__mro__}
    return not names.isdisjoint(BROKEN) or (isinstance(error, OSError) and error.errno in UNREACHABLE)


# ---------------------------------------------------------------------------------------------------- Retry-After
def retry_after(error: Any) -> float | None:
    """Seconds that its headers ask to wait. None: they do not, or cannot be read."""
    headers = {**headers_of(read(error, "response")), **headers_of(error)}
    milliseconds = seconds_of(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1_000
    value = headers.get("retry-after")
    seconds = seconds_of(value)
    if seconds is not None or value is None:
        return seconds
    at = date_of(value)
    if at is None:
        return None
    now = date_of(headers.get("date")) or datetime.now(UTC)  # the server's clock, because the date is one of it
    return max(0.0, (at - now).total_seconds())


def headers_of(place: Any) -> dict[str, str]:
    """Its headers by their names in small letters."""
    try:
        return {str(name).lower(): str(value) for name, value in read(place, "headers").items()}
    except Exception:
        return {}


def seconds_of(value: str | None) -> float | None:
    try:
        found = float(value or "")
    except ValueError:
        return None
    return found if 0 <= found < math.inf else None


def date_of(value: str | None) -> datetime | None:
    try:
        found = parsedate_to_datetime(value or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
