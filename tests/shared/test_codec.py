"""The default codec: a value of its types comes back equal in value and type; any other is refused, on both sides."""
import math
import struct
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.process import environment, run_command

from manytail.mapping import _codec


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Page:
    url: str
    size: int = 0


@dataclass
class Tagged:
    page: Page
    tags: list[str] = field(default_factory=list)
    made: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.made += 1  # reading must not run this again


class Colour(IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


same_name = namedtuple("Point", "x y")


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", other)
    if isinstance(one, dict):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one.items(), other.items(), strict=True))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Decimal):
        return one.as_tuple() == other.as_tuple()
    if isinstance(one, (time, datetime)):
        return one == other and one.fold == other.fold and one.tzinfo == other.tzinfo
    return bool(one == other)


ZONES = [None, UTC, ZoneInfo("Europe/Vienna"), ZoneInfo("America/New_York")]
SINGLE = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.dates()
    | st.timedeltas() | st.uuids() | st.decimals() | st.times(timezones=st.none() | st.just(UTC))
    | st.datetimes(timezones=st.sampled_from(ZONES))
)  # fmt: skip
HASHABLE = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    SINGLE,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(HASHABLE, inner)
        | st.builds(Point, st.integers(), inner)
    ),
)


@given(VALUES)
def test_a_value_comes_back_as_it_was(value):
    assert same(_codec.decode(_codec.encode(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        -0.0, math.nan, math.inf, 10**400, -(10**400), "\udc80", Decimal("sNaN123"), Decimal("-0E-7"),
        datetime(2026, 10, 25, 2, 30, fold=1),
        datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Vienna")), time(1, tzinfo=timezone(timedelta(hours=1), "one")),
        date.min, datetime.max,
        timedelta.min, UUID(int=7), {1: True, 2: 1}, {"b": 1, "a": 2}, [(), [], {}, b""], Point(1), Page("u", 3),
    ],
    ids=repr,
)  # fmt: skip
def test_an_edge_comes_back(value):
    assert same(_codec.decode(_codec.encode(value)), value)


def test_a_dataclass_comes_back_without_its_code_being_run():
    value = Tagged(Page("u"), ["a"])
    found = _codec.decode(_codec.encode(value))
    assert found == value
    assert found.made == 1
    assert type(found.page) is Page


def local() -> Any:
    @dataclass
    class Local:
        x: int = 1

    return Local()


@dataclass
class Headers(dict[str, str]):
    x: int = 1


@dataclass
class Refusal(Exception):
    x: int = 1


class Slotted:
    __slots__ = ("__hidden",)

    def hide(self) -> "Slotted":
        self.__hidden = 1
        return self


@dataclass
class WithSlot(Slotted):
    x: int = 1


class MorePoint(Point):
    pass


def more_point() -> Any:
    made = MorePoint(1)
    made.more = 1  # type: ignore[attr-defined]
    return made


def with_more() -> Any:
    made = Tagged(Page("u"))
    made.more = 1  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        Colour.RED,
        Text("x"),
        bytearray(b"x"),
        len,
        local(),
        same_name(1, 2),
        with_more(),
        more_point(),
        WithSlot().hide(),
        Headers(),
        Refusal(),
        [1, [object()]],
        Page,
    ],
    ids=lambda value: type(value).__qualname__,  # str() may show an address, which differs among xdist's workers
)
def test_what_would_not_come_back_exactly_is_refused(value):
    with pytest.raises(TypeError, match=r"^codec: "):
        _codec.encode(value)


def test_what_contains_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="contains itself"):
        _codec.encode(loop)


@given(VALUES, st.data())
def test_damaged_bytes_are_a_value_error_or_another_value(value, data):
    """Never another exception, a crash or a hang."""
    good = _codec.encode(value)
    at = data.draw(st.integers(0, len(good) - 1))
    for bad in (good[:at], good[:at] + data.draw(st.binary(max_size=4)) + good[at + 1 :], good + b"0"):
        try:
            _codec.decode(bad)
        except ValueError:
            continue


def test_a_short_end_and_a_long_one_are_refused():
    good = _codec.encode(["a", 1])
    for bad in (b"", good[:-1], good + b"0", b"?"):
        with pytest.raises(ValueError, match=r"^codec: "):
            _codec.decode(bad)


def test_deep_nesting_is_a_value_error():
    with pytest.raises(ValueError, match="RecursionError"):
        _codec.decode(b"l\0\0\0\1" * 100_000 + b"0")


@pytest.mark.parametrize(
    ("module", "qualname", "names"),
    [
        ("os", "system", ("x",)),
        ("antigravity", "Thing", ()),
        (__name__, "Page", ("url",)),
        (__name__, "Colour", ("x",)),
        (1, 2, 3),
    ],
)
def test_only_a_class_with_these_fields_is_made(module, qualname, names):
    for tag in (b"N", b"C"):
        with pytest.raises(ValueError, match=r"^codec: "):
            _codec.decode(tag + _codec.encode((module, qualname, names)) + b"0" * 3)
    assert "antigravity" not in sys.modules  # nothing was imported


@pytest.mark.thread_unsafe(reason="writes a program")
def test_a_class_of_a_program_is_found_where_it_is_imported(tmp_path):
    """And the other way: a result that a module has recorded is read by the program of that name."""
    (tmp_path / "jobs.py").write_text(
        "from dataclasses import dataclass\n"
        "from manytail.mapping._codec import decode, encode\n"
        "@dataclass\nclass Page:\n    url: str\n"
        "if __name__ == '__main__':\n"
        "    data = encode(Page('u'))\n"
        "    assert b'__main__' not in data\n"
        "    assert type(decode(data)) is Page\n"
        "    older = data.replace(b'\\x00\\x04jobs', b'\\x00\\x08__main__')\n"
        "    assert decode(older) == Page('u')\n"
        "    print(data.hex())\n"
    )
    program = run_command(sys.executable, tmp_path / "jobs.py", env=environment())
    assert program.returncode == 0, program.stderr
    reads = "import jobs, sys; assert type(jobs.decode(bytes.fromhex(sys.argv[1]))) is jobs.Page"
    reader = run_command(sys.executable, "-c", reads, program.stdout.strip(), env=environment(), cwd=tmp_path)
    assert reader.returncode == 0, reader.stderr
