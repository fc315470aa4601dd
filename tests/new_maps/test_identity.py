"""Keys and records of the new maps: the same bytes as those of today, which stand in users' databases."""

import math
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Context, Decimal, localcontext
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.counts import count

from manytail._maps.results import identity
from manytail.mapping import _codec, _idempotency


class Point(NamedTuple):
    x: int
    y: Any = 0.0


@dataclass
class Tagged:
    point: Any
    tags: list[str] = field(default_factory=list)
    made: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.made += 1  # reading must not run this again


@dataclass(slots=True)
class Slotted:
    __private: int = 1


class NoOffset(tzinfo):
    def utcoffset(self, at: Any) -> None:
        return None


ZONES = [None, UTC, timezone(timedelta(hours=1), "one"), ZoneInfo("Europe/Vienna"), ZoneInfo("America/New_York")]
SINGLE = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.dates()
    | st.timedeltas() | st.uuids() | st.decimals() | st.times(timezones=st.sampled_from(ZONES))
    | st.datetimes(timezones=st.sampled_from(ZONES))
)  # fmt: skip
HASHABLE = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    SINGLE,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(HASHABLE, inner)
        | st.builds(Point, st.integers(), inner) | st.builds(Tagged, inner, st.lists(st.text()))
    ),
    max_leaves=count(8, 100),
)  # fmt: skip
EVERY_TYPE = [
    None, True, 1, -(10**30), 1.5, -0.0, math.nan, math.inf, "a\u20ac\udc80", b"a\0", date.max, UUID(int=7),
    timedelta.min, Decimal("-0E-7"), Decimal("sNaN7"), time(1, fold=1),
    *(datetime(2026, 10, 25, 2, 30, tzinfo=zone) for zone in ZONES),
    (), [[]], {}, {"b": (1,), 1: {None: Point(1, [Tagged(Point(2), ["a"])])}},
]  # fmt: skip
EXAMPLES = settings(max_examples=count(50, 200))


def said(call: Any, *arguments: Any) -> Any:
    """What it returns, or the type of what it raises."""
    try:
        return call(*arguments)
    except Exception as error:
        return type(error)


@example(EVERY_TYPE)
@EXAMPLES
@given(VALUES)
def test_keys_and_records_are_those_of_today(value):
    assert identity.stable(value) == _idempotency.encode(value)
    assert identity.key(value) == _idempotency.idempotency_key(value)
    data = identity.encode(value)
    assert data == _codec.encode(value)
    assert identity.encode(identity.decode(data)) == data
    assert repr(identity.decode(data)) == repr(value)  # tells -0.0, True, zones and classes apart


def damaged(data: bytes) -> Any:
    """With one byte changed."""
    return st.builds(
        lambda at, byte: data[:at] + bytes([byte]) + data[at + 1 :], st.integers(0, len(data)), st.integers(0, 255)
    )


@EXAMPLES
@given(st.binary(max_size=40) | VALUES.map(_codec.encode).flatmap(damaged))
def test_any_bytes_are_read_as_today_or_refused(data):
    one, other = said(identity.decode, data), said(_codec.decode, data)
    assert one is ValueError or repr(one) == repr(other)
    assert (one is ValueError) == (other is ValueError)


@EXAMPLES
@given(st.dictionaries(HASHABLE, SINGLE), st.randoms())
def test_the_order_of_a_dict_counts_in_records_alone(value, random):
    shuffled = list(value.items())
    random.shuffle(shuffled)
    assert identity.key(dict(shuffled)) == identity.key(value)
    assert list(identity.decode(identity.encode(dict(shuffled)))) == [name for name, _ in shuffled]


@pytest.mark.parametrize(
    ("equal", "others"),
    [
        ([0, -0], [False, 0.0, "0", Decimal(0), None]),
        ([0.0, -0.0], [0, 5e-324]),
        ([math.nan, -math.nan], [math.inf]),
        ([Decimal("1E+2"), Decimal(100), Decimal("100.00")], [100, Decimal("1E+3")]),
        ([Decimal("NaN"), Decimal("-sNaN7")], [math.nan, Decimal("Infinity")]),
        ([time(1, tzinfo=NoOffset()), time(1)], [time(1, tzinfo=UTC)]),
        ([datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), datetime(2026, 1, 1, tzinfo=UTC)],
         [datetime(2026, 1, 1)]),
        ([datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))], [datetime.max.replace(tzinfo=UTC)]),
        ([Point(1)], [(1, 0.0), Slotted(1)]),
        ([b"a"], ["a", [b"a"], (b"a",)]),
    ],
)  # fmt: skip
def test_equal_values_have_equal_keys_and_others_have_not(equal, others):
    with localcontext(Context(prec=1, capitals=0)):
        assert len({identity.key(each) for each in equal}) == 1
    assert identity.key(equal[0]) not in {identity.key(each) for each in others}


def like_named(module: str) -> Any:
    return type("Tagged", (NamedTuple("Base", [("x", int)]),), {"__module__": module})(1)


def test_like_named_classes_of_two_modules_have_different_keys():
    assert identity.key(like_named("one")) != identity.key(like_named("two"))


@pytest.mark.parametrize("base", [dict, list, str, bytes, int, Exception, set])
def test_a_dataclass_with_content_besides_its_fields_is_refused(base):
    kind = dataclass(type("Odd", (base,), {"__annotations__": {"x": int}, "x": 1, "__module__": __name__}))
    with pytest.raises(TypeError, match=f"derives from {base.__name__}"):
        identity.key([kind()], "item_id")
    with pytest.raises(TypeError, match=f"codec: a result .* derives from {base.__name__}"):
        identity.encode(kind())


REFUSED = [object(), {1}, range(3), Tagged, lambda: None, 1j, bytearray()]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_another_type_is_refused_with_the_name_of_the_option(value):
    with pytest.raises(TypeError, match=r"^item_id: .* of type .*expected: None, bool.*, or an item_id"):
        identity.key({"a": (value,)}, "item_id", ", or an item_id")
    with pytest.raises(TypeError, match=r"^codec: a result .*expected: None"):
        identity.encode([value])


def test_a_value_whose_text_cannot_be_had_is_refused_all_the_same():
    class Silent:
        def __repr__(self) -> str:
            raise OSError

    with pytest.raises(TypeError, match="of type"):
        identity.key(Silent())


def test_what_contains_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    for call in (identity.key, identity.encode):
        with pytest.raises(ValueError, match="contains itself"):
            call(loop)


def test_what_a_reader_could_not_make_again_is_not_recorded():
    @dataclass
    class Local:
        x: int = 1

    extra = Tagged(1)
    extra.more = 1  # type: ignore[attr-defined]
    for value in (Local(), extra, time(1, tzinfo=NoOffset())):
        with pytest.raises(TypeError, match="codec: a result"):
            identity.encode(value)
    assert identity.decode(identity.encode(Slotted(3))) == Slotted(3)


def test_a_dataclass_is_read_without_its_code():
    found = identity.decode(identity.encode(Tagged(Point(1), ["a"])))
    assert found == Tagged(Point(1), ["a"])
    assert found.made == 1


@pytest.mark.thread_unsafe(reason="it changes what the module's name stands for")
@pytest.mark.parametrize("change", ["fields", "kind", "gone", "module"])
def test_a_class_that_has_changed_is_not_read(change, monkeypatch):
    data = identity.encode(Point(1))
    other = {"fields": NamedTuple("Point", [("x", int)]), "kind": Tagged, "gone": None}.get(change)
    if change == "module":
        data = data.replace(__name__.encode(), b"x" * len(__name__))
    else:
        monkeypatch.setattr(sys.modules[__name__], "Point", other)
    with pytest.raises(ValueError, match="codec: class"):
        identity.decode(data)


def test_golden_keys():
    """Stored in databases. A change here makes users pay again."""
    golden = [
        (None, "1240a4684403b160e6597a653a88f56c"), (1, "f1d64ea6fe8bfb28473408dc4b401082"),
        ("\xfc\u20ac\udc80", "5b4972b14735204d7cf2bbfef3e84c1f"), (1.5, "8d9bcc85ce710f5a6bf257eee411d551"),
        (date(2026, 11, 23), "c5cbf078a0e8ed99d4060b4dda17f346"), (UUID(int=7), "0a4e5ca7e17b689368c983aeddcb9cf8"),
        (Decimal("1.5"), "b0333a97c601dedf8b8a08f6737fb2fb"),
    ]  # fmt: skip
    assert [(value, identity.key(value)) for value, _ in golden] == golden
