"""Dead letters: the message that is published in place of one that died, its history in the header x-death, and the rule that breaks cycles."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from manytail.broker._messages import Message
from manytail.broker._properties import BasicProperties, copied

__all__ = ["closes_a_cycle", "obituary"]


def obituary(message: Message, reason: str, queue: str, exchange: str, key: str | None) -> Message:
    """The dead message as it goes to the dead-letter exchange: `key` or else its old keys, without expiration, with one more x-death."""
    properties = BasicProperties() if message.properties is None else copied(message.properties)
    headers: dict[str, Any] = dict(properties.headers or {})
    _record(headers, message, reason, queue)
    if key is not None:
        headers.pop("CC", None)
    properties.headers = headers
    properties.__dict__.pop("expiration", None)
    return Message(message.body, properties, exchange, message.keys if key is None else (key,))


def _record(headers: dict[str, Any], message: Message, reason: str, queue: str) -> None:
    """Count this death with the former ones of the same queue and reason, and put it first."""
    listed = headers.get("x-death")
    deaths: list[dict[str, Any]] = [death for death in listed if isinstance(death, dict)] if isinstance(listed, list) else []
    if not deaths:
        headers.update({"x-first-death-reason": reason, "x-first-death-queue": queue, "x-first-death-exchange": message.exchange})
    headers.update({"x-last-death-reason": reason, "x-last-death-queue": queue, "x-last-death-exchange": message.exchange})
    now = datetime.now(UTC).replace(microsecond=0)
    same = next((death for death in deaths if death.get("queue") == queue and death.get("reason") == reason), None)
    if same is None:
        copies = [key for key in headers.get("CC") or [] if isinstance(key, str)]
        latest = {
            "count": 1,
            "reason": reason,
            "queue": queue,
            "time": now,
            "exchange": message.exchange,
            "routing-keys": [message.keys[0], *copies],
        }
        if message.properties is not None and message.properties.expiration is not None:
            latest["original-expiration"] = message.properties.expiration
    else:
        latest = {**same, "count": same.get("count", 0) + 1, "time": now}
    headers["x-death"] = [latest, *(death for death in deaths if death is not same)]


def closes_a_cycle(letter: Message, reason: str, queue: str) -> bool:
    """Whether the dead letter would come to a queue that it died in before, and nobody rejected it since: nothing would ever stop it."""
    if reason == "rejected":
        return False
    since: list[dict[str, Any]] = []
    for death in letter.headers["x-death"]:
        since.append(death)
        if death.get("queue") == queue:
            return all(past.get("reason") != "rejected" for past in since)
    return False
