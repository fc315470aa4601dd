"""The address of a broker, with pika's names: ConnectionParameters, URLParameters, PlainCredentials.

Host, port and virtual host name a broker of this process. Everything else is checked as pika checks it, kept as an
attribute, and has no effect: there is no network, no login and no frame.
"""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from manytail._values import initialised_repr

__all__ = ["ConnectionParameters", "ExternalCredentials", "Parameters", "PlainCredentials", "URLParameters"]

PORT, PORT_OF_AMQPS = 5672, 5671


class PlainCredentials:
    """A user name and a password. The broker does not check them."""

    TYPE = "PLAIN"

    def __init__(self, username: str, password: str, erase_on_connect: bool = False) -> None:
        self.username = username
        self.password = password
        self.erase_on_connect = erase_on_connect

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlainCredentials) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class ExternalCredentials:
    """Credentials by TLS certificate. The broker does not check them."""

    TYPE = "EXTERNAL"

    def __init__(self) -> None:
        self.erase_on_connect = False


def _number(
    least: float, most: float = math.inf, *, none: bool = False, whole: bool = True
) -> tuple[Callable[[Any], bool], str]:
    kind = int if whole else (int, float)
    expected = f"{'a whole number' if whole else 'seconds'} from {least}"
    expected += ("" if most == math.inf else f" to {most}") + (" or None" if none else "")
    return lambda value: (none and value is None) or (isinstance(value, kind) and least <= value <= most), expected


# name -> (default, test, what it expects)
_OPTIONS: dict[str, tuple[Any, Callable[[Any], bool], str]] = {
    "host": ("localhost", lambda value: isinstance(value, str), "a str"),
    "port": (PORT, *_number(0, 65535)),
    "virtual_host": ("/", lambda value: isinstance(value, str), "a str"),
    "credentials": (
        PlainCredentials("guest", "guest"), lambda value: hasattr(value, "erase_on_connect"), "PlainCredentials",
    ),
    "channel_max": (65535, *_number(1, 65535)),
    "frame_max": (131072, *_number(4096, 131072)),
    "heartbeat": (
        None,
        lambda value: value is None or callable(value) or (isinstance(value, int) and value >= 0),
        "None, a whole number or a callable",
    ),
    "ssl_options": (None, lambda value: True, ""),
    "connection_attempts": (1, *_number(1)),
    "retry_delay": (2.0, *_number(0, whole=False)),
    "socket_timeout": (10.0, *_number(0, none=True, whole=False)),
    "stack_timeout": (15.0, *_number(0, none=True, whole=False)),
    "locale": ("en_US", lambda value: isinstance(value, str), "a str"),
    "blocked_connection_timeout": (None, *_number(0, none=True, whole=False)),
    "client_properties": (None, lambda value: value is None or isinstance(value, dict), "a dict or None"),
    "tcp_options": (None, lambda value: value is None or isinstance(value, dict), "a dict or None"),
}


class Parameters:
    """The parameters of a connection as attributes, with their defaults."""

    host: str
    port: int
    virtual_host: str
    credentials: Any

    def __init__(self) -> None:
        for name, (default, _, _) in _OPTIONS.items():
            setattr(self, name, copy.copy(default))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _OPTIONS:
            raise AttributeError(f"{name}: no such parameter of a connection")
        if name == "port":
            value = _port(value)
        _, test, expected = _OPTIONS[name]
        if not test(value):
            kinds = (int, float, str, dict, type(None))
            raise (ValueError if isinstance(value, kinds) else TypeError)(f"{name}: {value!r} (expected: {expected})")
        self.__dict__[name] = value

    @initialised_repr
    def __repr__(self) -> str:
        return f"<{type(self).__name__} host={self.host} port={self.port} virtual_host={self.virtual_host}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parameters) and (self.host, self.port) == (other.host, other.port)

    __hash__ = None  # type: ignore[assignment]


def _port(value: Any) -> int:
    """As pika: whatever int() takes, so also the text of an environment variable."""
    try:
        return int(value)
    except (TypeError, ValueError):
        raise TypeError(f"port: {value!r} (expected: a whole number from 0 to 65535)") from None


class _DEFAULT:
    """A parameter that was not passed."""


class ConnectionParameters(Parameters):
    """The parameters of a connection, as in pika. host, port and virtual_host choose the broker of this process; the
    other parameters are checked and kept, but have no effect. Raises ValueError or TypeError for an invalid value, and
    TypeError for an unknown parameter."""

    def __init__(
        self, host: Any = _DEFAULT, port: Any = _DEFAULT, virtual_host: Any = _DEFAULT, credentials: Any = _DEFAULT,
        channel_max: Any = _DEFAULT, frame_max: Any = _DEFAULT, heartbeat: Any = _DEFAULT, ssl_options: Any = _DEFAULT,
        connection_attempts: Any = _DEFAULT, retry_delay: Any = _DEFAULT, socket_timeout: Any = _DEFAULT,
        stack_timeout: Any = _DEFAULT, locale: Any = _DEFAULT, blocked_connection_timeout: Any = _DEFAULT,
        client_properties: Any = _DEFAULT, tcp_options: Any = _DEFAULT, **kwargs: Any
    ) -> None:
        given = locals()
        super().__init__()
        if kwargs:
            raise TypeError(f"unexpected parameters: {', '.join(sorted(kwargs))} (expected: {', '.join(_OPTIONS)})")
        if ssl_options is not _DEFAULT and ssl_options is not None and port is _DEFAULT:
            self.port = PORT_OF_AMQPS
        for name in _OPTIONS:
            if given[name] is not _DEFAULT:
                setattr(self, name, given[name])


class URLParameters(Parameters):
    """The parameters of a connection as a URL: amqp://user:password@host:port/virtual-host?parameter=value&...

    Write %2f for the virtual host "/". Raises ValueError if the URL is invalid or names an unknown parameter."""

    def __init__(self, url: str) -> None:
        super().__init__()
        parts = urlsplit(url)
        if parts.scheme.lower() not in ("amqp", "amqps", "http", "https", ""):
            raise ValueError(f"url: {url!r} (expected: the scheme amqp or amqps)")
        self.host = parts.hostname or self.host
        default = PORT_OF_AMQPS if parts.scheme.lower() in ("amqps", "https") else PORT
        self.port = default if parts.port is None else parts.port
        if parts.username is not None:
            self.credentials = PlainCredentials(unquote(parts.username), unquote(parts.password or ""))
        if len(parts.path) > 1:
            self.virtual_host = unquote(parts.path.split("/")[1])
        for name, values in parse_qs(parts.query).items():
            if name not in _OPTIONS or name in ("host", "port", "virtual_host", "credentials"):
                raise ValueError(f"url: unknown parameter {name!r} in {url!r}")
            if len(values) != 1:
                raise ValueError(f"url: {len(values)} values of {name!r} in {url!r} (expected: one)")
            setattr(self, name, values[0] if name == "locale" else _literal(name, values[0]))


def _literal(name: str, text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        raise ValueError(f"{name}: {text!r} (expected: a literal, as {_OPTIONS[name][2] or 'a dict'})") from None
