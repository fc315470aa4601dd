"""Selectors: every rule of JMS's SQL-92 subset by example, and random ones against SQLite where both agree."""
import enum
import math
import re
import sqlite3
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.counts import count
from support.process import run_script
from support.threads import run_all

pytest.importorskip("lark")

from manytail._selectors import MAX_DEPTH, compile_selector

UNKNOWN = None
HEADERS = {
    "colour": "red", "name": "O'Neil", "empty": "", "percent": "100%", "under": "a_b", "lines": "one\ntwo",
    "weight": 4, "zero": 0, "minus": -7, "big": 2**70, "ratio": 2.5, "whole": 4.0, "nan": math.nan,
    "yes": True, "no": False, "nothing": None, "when": object(), "list": [1],
    "content-type": "text/plain", 'a"b': 1, "größe": 7, "$x_1": 1, "Weight": 9,
}  # fmt: skip


class Entry:
    """As much of an entry as a selector looks at."""

    def __init__(self, headers, priority=4):
        self.headers, self.priority = headers, priority


def verdict(text, headers=None, priority=4):
    """True, False or UNKNOWN: unknown is what neither the selector nor its negation selects."""
    entry = Entry(HEADERS if headers is None else headers, priority)
    selects, negated = compile_selector(text)(entry), compile_selector(f"NOT ({text})")(entry)
    assert type(selects) is type(negated) is bool
    assert not (selects and negated)
    return True if selects else False if negated else UNKNOWN


# ------------------------------------------------------------------------------------------------ by example
@pytest.mark.parametrize(("text", "expected"), [
    # comparison
    ("weight = 4", True), ("weight = 5", False), ("weight <> 5", True), ("weight <> 4", False), ("weight < 5", True),
    ("weight < 4", False), ("weight <= 4", True), ("weight > 3", True), ("weight > 4", False), ("weight >= 4", True),
    ("weight >= 5", False), ("3 < weight", True), ("weight = whole", True), ("weight = 4.0", True), ("ratio > 2", True),
    ("ratio < weight", True), ("minus = -7", True), ("minus = - 7", True), ("minus = +-7", True), ("big > 1", True),
    ("big = 1180591620717411303424", True), ("nan = nan", False), ("nan <> nan", True), ("nan < 1", False),
    ("colour = 'red'", True), ("colour = 'Red'", False), ("colour <> 'blue'", True), ("name = 'O''Neil'", True),
    ("empty = ''", True), ("yes = TRUE", True), ("yes = FALSE", False), ("yes <> no", True), ("no = false", True),
    ("(weight > 3) = yes", True),
    # different types compare false, by <> too
    ("weight = '4'", False), ("weight <> '4'", False), ("colour = 4", False), ("colour <> 4", False),
    ("yes = 1", False), ("yes <> 1", False), ("weight = TRUE", False), ("zero = FALSE", False), ("colour < 4", False),
    ("4 < colour", False), ("yes < 4", False), ("colour > colour", False), ("yes > no", False), ("when = 1", False),
    ("when <> 1", False), ("list = 'a'", False), ("'4' = 4", False), ("NOT weight = '4'", True),
    # three values
    ("nothing = 1", UNKNOWN), ("missing = 1", UNKNOWN), ("missing <> 1", UNKNOWN), ("missing = missing", UNKNOWN),
    ("missing < 1", UNKNOWN), ("NOT missing = 1", UNKNOWN), ("missing = 1 AND yes", UNKNOWN),
    ("missing = 1 AND no", False), ("no AND missing = 1", False), ("missing = 1 OR yes", True),
    ("yes OR missing = 1", True), ("missing = 1 OR no", UNKNOWN), ("missing = 1 OR nothing = 1", UNKNOWN),
    # headers as conditions
    ("yes", True), ("no", False), ("NOT no", True), ("missing", UNKNOWN), ("weight", False), ("colour", False),
    ("NOT weight", True), ("TRUE", True), ("FALSE", False), ("(yes)", True), ("missing AND FALSE", False),
    # precedence
    ("yes OR no AND no", True), ("(yes OR no) AND no", False), ("NOT no AND no", False), ("NOT (no AND no)", True),
    ("NOT no OR yes", True), ("NOT weight = 5 AND yes", True), ("NOT NOT yes", True), ("no OR no OR yes", True),
    ("yes AND yes AND no", False), ("2 + 3 * 4 = 14", True), ("(2 + 3) * 4 = 20", True), ("10 - 2 - 3 = 5", True),
    ("24 / 4 / 2 = 3", True), ("- weight + 5 = 1", True), ("2 * - 3 = -6", True), ("weight + 1 > ratio * 1.5", True),
    ("weight BETWEEN 1 AND 5 AND yes", True), ("NOT weight BETWEEN 5 AND 9", True),
    # arithmetic
    ("weight + 1 = 5", True), ("weight - 5 = -1", True), ("weight * 2.5 = 10", True), ("7 / 2 = 3", True),
    ("minus / 2 = -3", True), ("-7 / -2 = 3", True), ("7 / -2 = -3", True), ("7.0 / 2 = 3.5", True),
    ("7 / 2.0 = 3.5", True), ("ratio / 0.5 = 5", True), ("big * big > 0", True), ("weight / zero = 1", UNKNOWN),
    ("ratio / 0 = 1", UNKNOWN), ("1 / 0 = 1", UNKNOWN), ("missing + 1 = 1", UNKNOWN), ("1 + missing * 2 = 1", UNKNOWN),
    ("-missing = 1", UNKNOWN), ("colour + 1 = 1", UNKNOWN), ("yes + 1 = 2", UNKNOWN), ("-colour = 1", UNKNOWN),
    ("- -3 = 3", True), ("+weight = 4", True),
    # BETWEEN
    ("weight BETWEEN 4 AND 5", True), ("weight BETWEEN 3 AND 4", True), ("weight BETWEEN 5 AND 9", False),
    ("weight BETWEEN 5 AND 3", False), ("weight NOT BETWEEN 5 AND 9", True), ("weight NOT BETWEEN 4 AND 4", False),
    ("weight between zero and whole + 1", True), ("missing BETWEEN 1 AND 2", UNKNOWN),
    ("weight BETWEEN missing AND 9", UNKNOWN), ("weight BETWEEN missing AND 3", False),
    ("weight NOT BETWEEN missing AND 3", True), ("colour BETWEEN 1 AND 2", False),
    ("weight + 1 BETWEEN 5 AND 5.5", True),
    # IN
    ("colour IN ('blue', 'red')", True), ("colour IN ('blue')", False), ("colour NOT IN ('blue')", True),
    ("colour NOT IN ('red')", False), ("missing IN ('red')", UNKNOWN), ("missing NOT IN ('red')", UNKNOWN),
    ("weight IN ('red')", False), ("weight NOT IN ('4')", True), ("weight IN (1, 4)", True), ("whole IN (4)", True),
    ("minus IN (+7, -7)", True), ("yes IN (1)", False), ("yes IN (TRUE)", True), ("name IN ('O''Neil')", True),
    ("when IN (1)", False), ("list IN (1)", False), ("ratio IN (2.5)", True),
    # LIKE
    ("colour LIKE 'red'", True), ("colour LIKE 're'", False), ("colour LIKE 'r%'", True), ("colour LIKE '%d'", True),
    ("colour LIKE '%e%'", True), ("colour LIKE 'r_d'", True), ("colour LIKE 'r__'", True),
    ("colour LIKE 'r__d'", False), ("colour LIKE '%'", True), ("empty LIKE '%'", True), ("empty LIKE ''", True),
    ("empty LIKE '_'", False), ("colour LIKE ''", False), ("colour LIKE 'R%'", False), ("colour LIKE '_%_'", True),
    ("lines LIKE 'one%two'", True), ("lines LIKE 'one_two'", True), ("lines LIKE '%two'", True),
    ("colour LIKE 'r.d'", False), ("percent LIKE '100!%' ESCAPE '!'", True), ("percent LIKE '1!%' ESCAPE '!'", False),
    ("under LIKE 'a!_b' ESCAPE '!'", True), ("colour LIKE 'r!_d' ESCAPE '!'", False),
    ("under LIKE 'a\\_b' ESCAPE '\\'", True), ("colour LIKE 'r%%d'", True), ("name LIKE 'O''%'", True),
    ("colour LIKE '%r%e%d%'", True), ("percent LIKE '%%%' ESCAPE '_'", True), ("percent LIKE '100%%' ESCAPE '%'", True),
    ("colour LIKE '!red' ESCAPE '!'", True), ("colour NOT LIKE 'b%'", True), ("colour NOT LIKE 'r%'", False),
    ("missing LIKE '%'", UNKNOWN), ("missing NOT LIKE '%'", UNKNOWN), ("weight LIKE '4'", False),
    ("weight NOT LIKE '4'", True), ("empty LIKE '%%'", True), ("colour LIKE '%d%r%'", False),
    # IS NULL
    ("nothing IS NULL", True), ("missing IS NULL", True), ("weight IS NULL", False), ("weight IS NOT NULL", True),
    ("missing is not null", False), ("empty IS NULL", False), ("when IS NULL", False), ("no IS NOT NULL", True),
    ("NOT missing IS NULL", False),
    # literals and names
    ("weight = 0x4", True), ("weight = 0X4L", True), ("weight = 04", True), ("017 = 15", True), ("0 = zero", True),
    ("57L = 57", True), ("weight = 4E0", True), ("7. = 7", True), (".5 = 0.5", True), ("7E3 = 7000", True),
    ("-57.9E2 = -5790", True), ("1.5f = 1.5D", True), ("4d = weight", True), ("Weight = 9", True), ("größe = 7", True),
    ("$x_1 = 1", True), ("\"content-type\" LIKE 'text/%'", True), ('"a""b" = 1', True), ('"AND" IS NULL', True),
    ("weight\n\t=\r\n4", True), ("weight=4AND yes", True), ("(((weight)))=((4))", True), ("Nullable IS NULL", True),
    ("ANDROID IS NULL", True), ("notable IS NULL AND Inside IS NULL", True), ("colour In ('red') aNd Not no", True),
])  # fmt: skip
def test_a_selector_means_what_jms_says(text, expected):
    assert verdict(text) is expected


def test_jms_priority_is_that_of_the_entry_unless_a_header_has_the_name():
    assert verdict("JMSPriority = 7", {}, priority=7) is True
    assert verdict("JMSPriority > 7", {}, priority=7) is False
    assert verdict("JMSPriority = 1", {"JMSPriority": 1}, priority=7) is True
    assert verdict("JMSPriority > 5 OR colour = 'red'", {"colour": "red"}) is True


def test_a_selector_with_jms_priority_copies_no_headers():
    """They were copied for each entry."""
    class Uncopied(dict):
        def keys(self):
            raise AssertionError("headers are copied")

        __iter__ = items = values = copy = __or__ = __ror__ = keys

    headers = Uncopied({f"h{n}": n for n in range(100)})
    with pytest.raises(AssertionError):
        dict(**headers)
    assert verdict("JMSPriority = 7 AND h3 = 3", headers, priority=7) is True
    for text in (
        "JMSPriority IN (7)",
        "JMSPriority BETWEEN 6 AND 8",
        "JMSPriority + 1 = 8",
        "JMSPriority IS NOT NULL",
        "JMSPriority >= 7",
    ):
        assert verdict(text, headers, priority=7) is True
    headers["JMSPriority"] = None
    assert verdict("JMSPriority = 7", headers, priority=7) is UNKNOWN
    assert verdict("JMSPriority IS NULL", headers, priority=7) is True


class Size(enum.IntEnum):
    LARGE = 3


class Colour(enum.StrEnum):
    RED = "red"


class Text(str):
    def __eq__(self, other):
        raise AssertionError("a selector compares the text, not the object")

    __hash__ = str.__hash__


@pytest.mark.parametrize(("value", "text", "expected"), [
    (Size.LARGE, "h = 3", True), (Size.LARGE, "h IN (3)", True), (Size.LARGE, "h + 1 = 4", True),
    (Colour.RED, "h = 'red'", True), (Colour.RED, "h LIKE 'r%'", True), (Text("red"), "h = 'red'", True),
    (Text("red"), "h IN ('red')", True), (Decimal("2.5"), "h > 2", True), (Decimal("2.5"), "h = 2.5", True),
    (Decimal("2.5"), "h + 0.5 = 3", True), (Fraction(1, 2), "h = 0.5", True), (1 + 2j, "h = 1", False),
    (b"red", "h = 'red'", False),
])  # fmt: skip
def test_headers_that_are_numbers_or_strings_of_other_classes(value, text, expected):
    assert verdict(text, {"h": value}) is expected


def test_numpy_scalars_are_numbers():
    numpy = pytest.importorskip("numpy")
    for value in (numpy.int64(4), numpy.float32(4), numpy.float64(4)):
        assert verdict("h = 4", {"h": value}) is True
        assert verdict("h / 8.0 = 0.5", {"h": value}) is True


def test_headers_may_be_any_mapping():
    from collections import ChainMap
    from types import MappingProxyType

    for headers in (MappingProxyType({"a": 1}), ChainMap({}, {"a": 1})):
        assert verdict("a = 1 AND b IS NULL", headers) is True


# ------------------------------------------------------------------------------------------------ refused
@pytest.mark.parametrize(("text", "line", "column", "what"), [
    ("", 1, 1, "nothing"), ("  ", 1, 3, "nothing"), ("a =", 1, 4, "the end"), ("a = = 3", 1, 5, "'='"),
    ("a b", 1, 3, "'b'"), ("AND", 1, 1, "'AND'"), ("a AND", 1, 6, "the end"), ("NOT", 1, 4, "the end"),
    ("(a", 1, 3, "expected: \\)"), ("a)", 1, 2, "'\\)'"), ("a # b", 1, 3, "'#'"), ("a != 3", 1, 3, "'!'"),
    ("a == 3", 1, 4, "'='"), ("a = 'x", 1, 5, "closing '"), ('"a = 1', 1, 1, 'closing "'),
    ("a <> b <> c", 1, 8, "'<>'"), ("a < b < c", 1, 7, "'<'"), ("a = b = c", 1, 7, "'='"),
    ("a\n  AND b LIKE 5", 2, 14, "expected: a string"), ("a AND\n\nb ! c", 3, 3, "'!'"), ("a IN ()", 1, 7, "'\\)'"),
    ("a IN (b)", 1, 7, "'b'"), ("a IN (1,)", 1, 9, "'\\)'"), ("a IN 1", 1, 6, "expected: \\("),
    ("a IS 5", 1, 6, "expected: NOT, NULL"), ("a BETWEEN 1", 1, 12, "expected: AND"),
    ("a BETWEEN 1 OR 2", 1, 13, "'OR'"), ("a LIKE b", 1, 8, "expected: a string"),
    ("a LIKE 'x' ESCAPE '!!'", 1, 19, "one character"), ("a LIKE 'x' ESCAPE ''", 1, 19, "one character"),
    ("a LIKE 'x!' ESCAPE '!'", 1, 8, "ends in its escape"), ("a NULL", 1, 3, "'NULL'"), ("a = NULL", 1, 5, "'NULL'"),
    ("NULL IS NULL", 1, 1, "'NULL'"), ("3a = 1", 1, 2, "'a'"), ("a = 08", 1, 5, "octal"),
    # what parses and cannot mean anything
    ("a > 'x'", 1, 5, "a string"), ("'x' > a", 1, 1, "a string"), ("a < TRUE", 1, 5, "a condition"),
    ("a BETWEEN 'a' AND 'b'", 1, 11, "a string"), ("a AND 5", 1, 7, "a number"), ("'x'", 1, 1, "a string"),
    ("5", 1, 1, "a number"), ("a + 1", 1, 1, "a number"), ("NOT 'x'", 1, 5, "a string"),
    ("1 + 'a' = 2", 1, 5, "a string"), ("-'a' = 2", 1, 2, "a string"), ("(a = 1) + 1 = 2", 1, 2, "a condition"),
    ("a > 1.5 * 1" + "0" * 400, 1, 5, "too large"),
    ("5 IS NULL", 1, 1, "a header before IS"), ("'x' LIKE 'x'", 1, 1, "a header before LIKE"),
    ("a + 1 IN (2)", 1, 1, "a header before IN"), ("(a = 1) IS NULL", 1, 2, "a header before IS"),
    ("NOT " * (MAX_DEPTH + 10) + "a", 1, None, "levels deep"),
    ("-(" * (MAX_DEPTH + 10) + "a" + ")" * (MAX_DEPTH + 10) + " = 1", 1, None, "levels deep"),
])  # fmt: skip
def test_a_bad_selector_is_refused_with_its_place(text, line, column, what):
    with pytest.raises(ValueError, match=rf"^selector, line {line}, column {column or '[0-9]+'}: .*{what}") as caught:
        compile_selector(text)
    message, snippet, caret = str(caught.value).split("\n")
    assert caret == " " * (len(caret) - 1) + "^"
    if column and column < 60:
        shown = text.split("\n")[line - 1]
        assert snippet == "  " + shown[: column + 19]
        assert len(caret) - 1 == 2 + column - 1
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, message


@pytest.mark.parametrize("text", [None, 5, b"a = 1", ["a = 1"]])
def test_a_selector_is_a_str(text):
    with pytest.raises(TypeError, match=re.escape(repr(text))):
        compile_selector(text)


@pytest.mark.thread_unsafe(reason="takes long, and shows no more in four threads")
def test_long_selectors_that_are_not_deep_are_taken():
    wide = " OR ".join(f"a = {n}" for n in range(2000))
    assert verdict(wide, {"a": 1999}) is True
    assert verdict("1" + " + 1" * 2000 + " = a", {"a": 2001}) is True
    assert verdict("(" * 2000 + "a = 1" + ")" * 2000, {"a": 1}) is True


def test_a_pattern_of_many_parts_takes_no_exponential_time():
    """A backtracking matcher would need longer than the universe has."""
    assert verdict("a LIKE '" + "%a" * 30 + "%b'", {"a": "a" * 5000}) is False


def test_a_selector_that_cannot_compute_raises():
    """The queue counts it and skips the entry."""
    with pytest.raises(OverflowError):
        compile_selector("a + 0.5 > 1")(Entry({"a": 10**400}))


def test_without_lark_the_error_says_what_to_install():
    script = """
import sys
sys.modules["lark"] = None
from manytail import EntryQueue
queue = EntryQueue()
for attempt in range(2):
    try:
        queue.subscribe(selector="a = 1")
    except ImportError as error:
        print(error)
queue.subscribe(selector=lambda entry: True).close()
"""
    assert run_script(script).count("pip install 'lark>=1.2,<2'") == 2


def test_only_a_selector_that_is_a_string_imports_lark():
    script = "import sys, manytail\nmanytail.EntryQueue().subscribe(selector=callable).close()\n"
    script += "assert not any(name.split('.')[0] == 'lark' for name in sys.modules)"
    run_script(script)


def test_one_selector_in_many_threads():
    selects = compile_selector("a > 1 AND b LIKE 'x%'")

    def use():
        assert compile_selector("c = 1 OR c = 2")(Entry({"c": 2}))
        assert [selects(Entry({"a": n % 4, "b": "xy"})) for n in range(400)] == [n % 4 > 1 for n in range(400)]

    run_all(*[use] * 4)


# ------------------------------------------------------------------------------------------------ against SQLite
NAMES = {"n": ["n1", "n2"], "f": ["f1"], "s": ["s1", "s2"], "b": ["b1", "b2"]}
small = st.integers(-20, 20)
reals = st.sampled_from([-2.5, -1.0, 0.0, 0.5, 1.0, 3.75, 10.0])
words = st.text(alphabet="ab%_'é", max_size=4)
rows = st.fixed_dictionaries({
    "n1": st.none() | small, "n2": st.none() | small, "f1": st.none() | reals, "s1": st.none() | words,
    "s2": st.none() | words,
    "b1": st.none() | st.booleans(), "b2": st.none() | st.booleans(),
})  # fmt: skip


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


literals = small.map(lambda n: f"({n})") | reals.map(lambda x: f"({x!r})")
strings = words.map(quoted)
numbers = st.recursive(
    st.sampled_from(NAMES["n"] + NAMES["f"]) | literals,
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner) | inner.map("(- {})".format),
    max_leaves=4,
)
signs = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
inversion = st.sampled_from(["", "NOT "])
predicates = (
    st.builds("{} {} {}".format, numbers, signs, numbers)
    | st.builds(
        "{} {} {}".format,
        st.sampled_from(NAMES["s"]),
        st.sampled_from(["=", "<>"]),
        st.sampled_from(NAMES["s"]) | strings,
    )
    | st.builds(
        "{} {} {}".format,
        st.sampled_from(NAMES["b"]),
        st.sampled_from(["=", "<>"]),
        st.sampled_from(["TRUE", "FALSE", "b1", "b2"]),
    )
    | st.builds("{} {}BETWEEN {} AND {}".format, numbers, inversion, numbers, numbers)
    | st.builds(
        "{} {}IN ({})".format,
        st.sampled_from(NAMES["s"]),
        inversion,
        st.lists(strings, min_size=1, max_size=3).map(", ".join),
    )
    | st.builds(
        "{} {}IN ({})".format,
        st.sampled_from(NAMES["n"]),
        inversion,
        st.lists(small.map(str), min_size=1, max_size=3).map(", ".join),
    )
    | st.builds("{} {}LIKE {}".format, st.sampled_from(NAMES["s"]), inversion, strings)
    | st.builds(
        "{} {}LIKE {} ESCAPE 'é'".format,
        st.sampled_from(NAMES["s"]),
        inversion,
        words.filter(lambda w: not w.endswith("é")).map(quoted),
    )
    | st.builds("{} IS {}NULL".format, st.sampled_from([name for names in NAMES.values() for name in names]), inversion)
    | st.sampled_from([*NAMES["b"], "TRUE", "FALSE"])
)
conditions = st.recursive(
    predicates,
    lambda inner: (
        st.builds("{} {} {}".format, inner, st.sampled_from(["AND", "OR"]), inner)
        | inner.map("NOT {}".format)
        | inner.map("({})".format)
    ),
    max_leaves=6,
)


def sqlite_says(text, row):
    database = sqlite3.connect(":memory:")
    try:
        database.execute("PRAGMA case_sensitive_like = ON")
        columns = ", ".join(f"? AS {name}" for name in row)
        (answer,) = database.execute(f"SELECT ({text}) FROM (SELECT {columns})", list(row.values())).fetchone()
    finally:
        database.close()
    return None if answer is None else bool(answer)


@settings(max_examples=count(200, 4_000), deadline=None)
@given(text=conditions, row=rows)
def test_random_selectors_mean_what_sqlite_says(text, row):
    assert verdict(text, row) is sqlite_says(text, row)


patterns = st.text(alphabet="ab%_", max_size=8)


@settings(max_examples=count(200, 4_000), deadline=None)
@given(pattern=patterns, value=st.text(alphabet="ab", max_size=10))
def test_random_patterns_match_as_in_sqlite(pattern, value):
    text = f"s1 LIKE {quoted(pattern)}"
    assert verdict(text, {"s1": value}) is sqlite_says(text, {"s1": value})


@settings(max_examples=count(200, 3_000), deadline=None)
@given(text=st.text(alphabet="ab1'\"() <>=+-*/.,NOTANDORLIKEIS%\n", max_size=25))
def test_any_text_is_a_selector_or_a_value_error(text):
    try:
        selects = compile_selector(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"^selector, line \d+, column \d+: "):
            compile_selector(text)
    else:
        assert selects(Entry({"a": 1, "b": "x"})) in (True, False)
