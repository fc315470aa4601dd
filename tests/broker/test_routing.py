"""From an exchange to its queues: the types, returns, the default exchange."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from broker.sides import Side, server_versions


def bound(side: Side, kind: str, *keys: str, **options: Any) -> tuple[Any, str, dict[str, str]]:
    """A channel, an exchange, and a queue for each key."""
    channel = side.channel()
    exchange = side.exchange(channel, kind, **options)
    queues = {}
    for key in keys:
        queues[key] = side.queue(channel)
        channel.queue_bind(queues[key], exchange, key)
    return channel, exchange, queues


def test_direct_is_the_whole_key(side: Side) -> None:
    channel, exchange, queues = bound(side, "direct", "a", "b", "")
    for key in ("a", "b", "", "A", "a.b"):
        side.publish(channel, key, f"to {key}", exchange=exchange)
    assert {key: side.drain(channel, queue) for key, queue in queues.items()} == {
        "a": [b"to a"],
        "b": [b"to b"],
        "": [b"to "],
    }


def test_the_empty_name_is_the_last_queue(side: Side) -> None:
    channel, exchange, _ = bound(side, "direct")
    queue = side.queue(channel)
    channel.queue_bind("", exchange, "")
    side.publish(channel, queue, 1, exchange=exchange)
    assert channel.basic_get("", True)[2] == b"1"
    assert side.code(lambda ch: ch.basic_get("", True)) == 404


def test_one_copy_per_queue(side: Side) -> None:
    channel, exchange, queues = bound(side, "topic", "x.#")
    queue = queues["x.#"]
    channel.queue_bind(queue, exchange, "#.x")
    for key in ("x.y", "y.x", "x.x", "y.y"):
        side.publish(channel, key, key, exchange=exchange)
    assert side.drain(channel, queue) == [b"x.y", b"y.x", b"x.x"]


def test_fanout_ignores_the_key(side: Side) -> None:
    channel, exchange, queues = bound(side, "fanout", "a", "b")
    side.publish(channel, "whatever", 1, exchange=exchange)
    assert [side.drain(channel, queue) for queue in queues.values()] == [[b"1"], [b"1"]]


PATTERNS = "# * *.# #.* a.# #.a a.* *.a a.#.b #.# a* *.* a a. #.a.# *.#.* a.#.#.b A".split()  # noqa: SIM905
PATTERNS += [""]
KEYS = "a b a. .a a.b a.x.b a.x.y.b ab a* # * a.#.b . .. A a.a x.a.y".split()  # noqa: SIM905
KEYS += [""]


@pytest.mark.parametrize("key", KEYS)
def test_topic_patterns_word_by_word(side: Side, key: str) -> None:
    """Both sides give the same answers, and those of a recursive definition."""

    def matches(pattern: list[str], words: list[str]) -> bool:
        if not pattern:
            return not words
        if pattern[0] == "#":
            return matches(pattern[1:], words) or (bool(words) and matches(pattern, words[1:]))
        return bool(words) and pattern[0] in ("*", words[0]) and matches(pattern[1:], words[1:])

    def split(text: str) -> list[str]:
        return text.split(".") if text else []

    channel, exchange, queues = bound(side, "topic", *PATTERNS)
    side.publish(channel, key, 1, exchange=exchange)
    got = {pattern for pattern, queue in queues.items() if channel.basic_get(queue, True)[0] is not None}
    assert got == {pattern for pattern in PATTERNS if matches(split(pattern), split(key))}


HEADERS: list[dict[str, Any]] = [
    {},
    {"a": 1},
    {"a": "x"},
    {"b": 2},
    {"a": 1, "b": 2},
    {"a": 2, "b": 2},
    {"a": 1, "b": 2, "c": 3},
    {"a": 1, "b": 2, "n": None},
    {"a": 1, "b": 2, "n": "there"},
    {"n": 7},
    {"x-x": 1},
    {"c": 3},
]


@pytest.mark.parametrize(("match", "indices"), [("all", [7, 8]), (None, [7, 8]), ("any", [1, 3, 4, 5, 6, 7, 8, 9])])
def test_headers_all_and_any(side: Side, channel: Any, match: str | None, indices: list[int]) -> None:
    exchange, queue = side.exchange(channel, "headers"), side.queue(channel)
    arguments: dict[str, Any] = {"a": 1, "b": 2, "n": None, "x-x": 5}
    channel.queue_bind(queue, exchange, "", arguments | ({} if match is None else {"x-match": match}))
    for index, headers in enumerate(HEADERS):
        side.publish(channel, "", index, exchange=exchange, headers=headers)
    side.publish(channel, "", "none", exchange=exchange)
    assert side.drain(channel, queue) == [str(index).encode() for index in indices]


VALUES: list[Any] = [
    *("1", b"1", 1, True, Decimal(1), Decimal("1.0")),
    *("7", 7, datetime(1970, 1, 1, 0, 0, 7), datetime(1970, 1, 1, 0, 0, 7, 9, tzinfo=UTC), Decimal(7)),
    *(0, False, "", [], {}, -1, 2**40, None),
    *([1], [True], ["1"], [b"1"], [Decimal(1)], {"a": 1}, {"a": "1"}, {"a": 1, "b": 2}, {"b": 2, "a": 1}),
]
ALIKE = [{0, 1}, {4, 5}, {7, 8, 9}, {14, 15}]  # the others equal themselves alone, and None is equal to all


def test_headers_are_compared_by_value(side: Side, channel: Any) -> None:
    exchange = side.exchange(channel, "headers")
    queues = [side.queue(channel) for _ in VALUES]
    for queue, value in zip(queues, VALUES, strict=True):
        channel.queue_bind(queue, exchange, "", {"k": value})
    for number, value in enumerate(VALUES):
        channel.basic_publish(exchange, "", str(number).encode(), side.Properties(headers={"k": value}))
    side.fence(channel)
    numbers = range(len(VALUES))
    alike = [next((group for group in ALIKE if number in group), {number}) for number in numbers]
    alike[VALUES.index(None)] = set(numbers)
    assert [{int(body) for body in side.drain(channel, queue)} for queue in queues] == alike


def test_times_in_headers_are_seconds_of_utc(side: Side) -> None:
    plus_five = timezone(timedelta(hours=5))
    zones = (None, UTC, plus_five, ZoneInfo("Asia/Tokyo"))
    times = [datetime(2020, 1, 1, 5, 0, 0, 999_999, zone) for zone in zones]
    channel, queue = side.filled()
    side.publish(channel, queue, 1, headers={"at": times})
    found = channel.basic_get(queue, True)[1].headers["at"]
    assert found == [datetime(2020, 1, 1, tzinfo=UTC) + timedelta(hours=hours) for hours in (5, 5, 0, -4)]
    assert all(time.tzinfo is UTC for time in found)


@pytest.mark.parametrize(("match", "expected"), [("all-with-x", [b"both"]), ("any-with-x", [b"a", b"x", b"both"])])
@server_versions(since="3.10")
def test_headers_with_x(side: Side, channel: Any, match: str, expected: list[bytes]) -> None:
    exchange, queue = side.exchange(channel, "headers"), side.queue(channel)
    channel.queue_bind(queue, exchange, "", {"x-match": match, "a": 1, "x-b": 2})
    for name, headers in (("a", {"a": 1}), ("x", {"x-b": 2}), ("both", {"a": 1, "x-b": 2}), ("none", {"c": 1})):
        side.publish(channel, "", name, exchange=exchange, headers=headers)
    assert side.drain(channel, queue) == expected


def test_headers_without_conditions(side: Side, channel: Any) -> None:
    exchange, everything, nothing = side.exchange(channel, "headers"), side.queue(channel), side.queue(channel)
    channel.queue_bind(everything, exchange, "", {"x-match": "all"})
    channel.queue_bind(nothing, exchange, "", {"x-match": "any"})
    side.publish(channel, "", 1, exchange=exchange, headers={"a": 1})
    side.publish(channel, "", 2, exchange=exchange)
    assert (side.drain(channel, everything), side.drain(channel, nothing)) == ([b"1", b"2"], [])


def test_mandatory_messages_are_returned_if_they_reach_no_queue(side: Side, channel: Any) -> None:
    queue, nowhere = side.queue(channel), side.unique()
    returned = side.returned(channel)
    side.publish(channel, queue, "routed", mandatory=True)
    side.publish(channel, nowhere, "dropped")
    side.publish(channel, nowhere, "returned", mandatory=True, message_id="7")
    ((method, properties, body),) = returned
    assert (body, properties.message_id) == (b"returned", "7")
    assert (method.reply_code, method.reply_text, method.exchange, method.routing_key) == (312, "NO_ROUTE", "", nowhere)


@server_versions(until="4.0")
def test_an_unknown_type_of_exchange(side: Side) -> None:
    assert side.code(lambda channel: channel.exchange_declare(side.unique("x"), "nonsense")) == 503
