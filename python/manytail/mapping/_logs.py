"""What the maps log. A handler or filter of the user that raises decides nothing: its Exception is dropped.

KeyboardInterrupt and SystemExit go through, because a signal handler may raise them meanwhile. So whoever has to do
something besides logs last.
"""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("manytail")


def _say(level: int, message: str, *arguments: Any, **named: Any) -> None:
    try:
        log.log(level, message, *arguments, stacklevel=3, **named)
    except Exception:
        return


def info(message: str, *arguments: Any) -> None:
    _say(logging.INFO, message, *arguments)


def warning(message: str, *arguments: Any, **named: Any) -> None:
    _say(logging.WARNING, message, *arguments, **named)


def error(message: str, *arguments: Any, **named: Any) -> None:
    _say(logging.ERROR, message, *arguments, **named)
