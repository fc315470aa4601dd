"""Idempotency keys: those of this release are those of the next, and equal values have equal ones."""
import datetime
import functools
import math
import sys
import uuid
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, Rounded, localcontext
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from support.process import environment, run_command

from manytail.mapping._idempotency import idempotency_key

# Stored in databases. A change here makes users pay again.
GOLDEN = [
    (None, "1240a4684403b160e6597a653a88f56c"),
    (True, "883e609a05d85c187a019cad93c12237"),
    (False, "178ae0acf7f5c5ab692c698ac329d4fd"),
    (0, "fa0f92d49a0e3adb27ade15263e164db"),
    (1, "f1d64ea6fe8bfb28473408dc4b401082"),
    (-(10**30), "886599c3322e842d8fc0de953b0c87ec"),
    (1.5, "8d9bcc85ce710f5a6bf257eee411d551"),
    (0.0, "9f4a5492fd33ea80fd4ae0b88baedb60"),
    (math.nan, "11c2d0600681d04a819fbde5d1cb88d1"),
    (math.inf, "73f6dd7ab3e5c8dfd213f317a7163283"),
    ("", "10d1c3e7b71511971402333797456797"),
    ("\xfc\u20ac\udc80", "5b4972b14735204d7cf2bbfef3e84c1f"),
    (b"\x00\xff", "948a0e9b0a2e52f8de0605e5e0210f37"),
    ([], "7b0112ec655ede8df1674802fc087955"),
    ([1, "a"], "840ae15c75c36217ccb851f2609768f7"),
    ((1, "a"), "723cb070224b4f1a62a32b77881532e0"),
    ({"b": 1, "a": [None]}, "1806bf2641287662a7263382af20f8fc"),
    (datetime.date(2026, 11, 23), "c5cbf078a0e8ed99d4060b4dda17f346"),
    (datetime.datetime(2026, 11, 23, 1, 2, 3, 4), "afee4647215e71c5afc56a4e5dc5399f"),
    (datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC), "12787a8b8bc14769c7b2ceb0aa2c7915"),
    (datetime.time(1, 2), "eef056586843ba7118d079c237992e52"),
    (datetime.timedelta(days=1, microseconds=2), "b040f563110944fb2707b442c2a1d1ef"),
    (uuid.UUID(int=7), "0a4e5ca7e17b689368c983aeddcb9cf8"),
    (Decimal(0), "48b901cee71c784e6c908535534896b7"),
    (Decimal("1.5"), "b0333a97c601dedf8b8a08f6737fb2fb"),
    (Decimal("1E+2"), "300e7a6b13e089106977234e30172b34"),
    (Decimal("0.000001"), "d9518ea4e5a4309de0e4543908f8384e"),
    (Decimal("9E-999999999999999999"), "ed6c88e6d2ccc0795fcfedd06f1bf307"),
    (Decimal("NaN"), "66306bb394f867140e64919ba6218cf8"),
    (Decimal("-Infinity"), "5f595f2ec09efbffbc32915187160496"),
]


@pytest.mark.parametrize(("value", "key"), GOLDEN)
def test_keys_do_not_change_between_releases(value, key):
    assert idempotency_key(value) == key


@pytest.mark.parametrize(
    "values",
    [
        ["1", "1.0", "1.00", "10E-1", "0.1E1"],
        ["0", "0.00", "-0", "0E+5", "-0E-7"],
        ["-120", "-1.2E2", "-12E1"],
        ["1E+999999999999999999", "10E+999999999999999998"],
        ["1E+400", "10E+399", "0.1E401"],
        ["NaN", "-NaN", "sNaN123", "NaN7"],
        ["Infinity"],
        ["-Infinity"],
        ["12345678901234567890123456789012345678.90", "12345678901234567890123456789012345678.9"],
    ],
)
def test_equal_decimals_have_equal_keys_and_others_have_not(values):
    assert len({idempotency_key(Decimal(value)) for value in values}) == 1
    assert idempotency_key(Decimal(values[0])) not in {idempotency_key(Decimal(other)) for other in ("2", "1.01", "-1")}


def test_the_context_of_decimals_does_not_count():
    values = [Decimal("1.2345"), Decimal("10E+9"), Decimal("Infinity")]
    keys = list(map(idempotency_key, values))
    with localcontext(Context(prec=2, Emax=1, capitals=0, traps=[Inexact, Rounded])):
        assert list(map(idempotency_key, values)) == keys


@dataclass
class Request:
    id: int


class Pair(NamedTuple):
    id: int


@pytest.mark.parametrize("kind", [Request, Pair])
def test_like_named_classes_of_two_modules_have_different_keys(kind):
    here, there = kind(1), type(kind.__name__, (kind,), {"__module__": "another", "__qualname__": kind.__qualname__})(1)
    assert idempotency_key(here) == idempotency_key(kind(1))
    assert idempotency_key(here) != idempotency_key(there)
    assert idempotency_key([here]) != idempotency_key([there])


def test_a_key_from_before_modules_counted_is_no_key_now():
    """Which would find the result of another class: that of Request(id=1) until 2026-11."""
    assert idempotency_key(Request(1)) != "87af4aedbfdfdd507ad1b48be6acd309"


@pytest.mark.thread_unsafe(reason="writes a program")
def test_a_class_of_a_program_has_the_name_that_others_import_it_by(tmp_path):
    program = tmp_path / "jobs.py"
    program.write_text(
        "from dataclasses import dataclass\n"
        "from manytail.mapping._idempotency import idempotency_key\n"
        "@dataclass\nclass Request:\n    id: int\n"
        "key = idempotency_key(Request(1))\n"
        "if __name__ == '__main__':\n    import jobs\n    print(key, jobs.key, key == jobs.key)\n"
    )
    ran = run_command(sys.executable, program, env=environment())
    assert ran.stdout.endswith("True\n"), ran.stderr


BASES = [(dict, ()), (list, ()), (str, ()), (int, ()), (Exception, ()), (functools.partial, (print,))]


@pytest.mark.parametrize(("base", "arguments"), BASES)
def test_a_dataclass_with_content_besides_its_fields_has_no_key(base, arguments):
    kind = dataclass(type("Odd", (base,), {"__annotations__": {"x": int}, "x": 1}))
    value = base.__new__(kind, *arguments)
    with pytest.raises(TypeError, match=rf"^dedup: .* of type Odd, .* derives from {base.__name__} \(expected: "):
        idempotency_key([value], "dedup")


def test_a_value_whose_text_cannot_be_had_is_refused_all_the_same():
    class Shy:
        def __repr__(self):
            raise ValueError

    with pytest.raises(TypeError, match="Shy"):
        idempotency_key(Shy())


VIENNA = ZoneInfo("Europe/Vienna")
OTHER = datetime.timezone(datetime.timedelta(hours=2, microseconds=1))
TWO = datetime.timezone(datetime.timedelta(hours=2))


class NoOffset(datetime.tzinfo):
    def utcoffset(self, when):
        return None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (datetime.datetime(2026, 7, 1, 12, tzinfo=VIENNA), datetime.datetime(2026, 7, 1, 10, tzinfo=datetime.UTC)),
        (datetime.datetime.min.replace(tzinfo=OTHER), datetime.datetime.min.replace(tzinfo=OTHER)),
        (
            datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
            datetime.datetime.min.replace(hour=1, tzinfo=TWO),
        ),
        (datetime.datetime(2026, 7, 1, tzinfo=NoOffset()), datetime.datetime(2026, 7, 1)),
        (datetime.time(12, tzinfo=datetime.UTC), datetime.time(14, tzinfo=TWO)),
        (datetime.time(12, tzinfo=VIENNA), datetime.time(12)),
    ],
)
def test_equal_moments_have_equal_keys(one, other):
    assert one == other
    assert idempotency_key(one) == idempotency_key(other)


def test_a_moment_of_a_subclass_has_no_key():
    """It may be more exact, as that of pandas is."""

    class Finer(datetime.datetime):
        pass

    with pytest.raises(TypeError, match="Finer"):
        idempotency_key(Finer(2026, 1, 1, tzinfo=datetime.UTC))
