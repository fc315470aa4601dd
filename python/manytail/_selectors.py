"""Selectors: the SQL-92 subset of JMS, over the headers of an entry, compiled once into closures.

    condition := condition OR condition | condition AND condition | NOT condition | (condition) | header
               | value (= | <> | < | <= | > | >=) value
               | value [NOT] BETWEEN value AND value
               | header [NOT] IN (literal, ...)
               | header [NOT] LIKE 'pattern' [ESCAPE 'character']
               | header IS [NOT] NULL
    value     := value (+ | - | * | /) value | (+ | -) value | (value) | literal | header
    literal   := 'it''s' | 57 | 0x39 | 071 | 7.5 | 7E3 | TRUE | FALSE
    header    := a Java identifier, case-sensitive, or any name in double quotes: "content-type"

Keywords may be written in any case. A header that is missing or None is NULL. `JMSPriority` is the entry's priority
unless a header has that name. lark parses; its Transformer builds the closures bottom-up, while it parses. Importing
this file needs lark.

Semantics are those of JMS 2.0, section 3.8.1:
- AND, OR and NOT are three-valued. What compares or computes with NULL is unknown; only a selector that is true
  selects.
- Numbers compare with numbers, exact with approximate ones too; strings with strings and booleans with booleans by =
  and <> only. Any other pair compares false, also by <>. A literal that cannot fit where it stands is refused when the
  selector is compiled.
- A header that stands as a condition is compared with TRUE.
- Exact division truncates toward zero, as in Java. Exact numbers do not overflow.
JMS leaves open: division by zero and arithmetic with what is no number give NULL. A header that is neither number,
string nor boolean is not NULL and compares false with everything.

Progress: evaluation takes no lock, allocates only what arithmetic allocates, and may run in any number of threads.
"""
from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from textwrap import indent
from typing import Any, Protocol

try:
    from lark import Lark, Token, Transformer, v_args
    from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
except ImportError as error:
    raise ImportError(
        "a selector that is a string needs lark: pip install 'lark>=1.2,<2'; a callable needs nothing"
    ) from error

MAX_DEPTH = 100  # of nested closures: far below the interpreter's limit, whatever the depth of the caller's stack


class Selectable(Protocol):
    """What a selector reads of an entry."""

    @property
    def headers(self) -> Mapping[str, Any]: ...
    @property
    def priority(self) -> int: ...


Evaluate = Callable[[Selectable], Any]  # a condition gives True, False or None; a value gives what `_plain` returns


def compile_selector(text: str) -> Callable[[Selectable], bool]:
    """A function of an entry that says whether the selector `text` is true for it.

    TypeError if text is not a str, ValueError with the place if it is not a selector."""
    if not isinstance(text, str):
        raise TypeError(f"selector: {text!r} (expected: a str)")
    try:
        parsed: Any = PARSER.parse(text)  # an _Operand: the transformer builds no tree
        evaluate = _as_condition(parsed).evaluate
    except UnexpectedInput as error:
        message = _message(text, error)
    else:
        return lambda entry: evaluate(entry) is True
    raise ValueError(message)


# ------------------------------------------------------------------------------------------------ grammar
GRAMMAR = r"""
?start: either
?either: both (OR both)*
?both: inverse (AND inverse)*
?inverse: NOT inverse -> negation
        | predicate
?predicate: sum
    | sum (EQUAL | ORDER) sum -> comparison
    | sum [NOT] BETWEEN sum AND sum -> between
    | sum [NOT] IN "(" literal ("," literal)* ")" -> among
    | sum [NOT] LIKE STRING [ESCAPE STRING] -> like
    | sum IS [NOT] NULL -> is_null
?sum: term (SIGN term)*
?term: factor (SCALE factor)*
?factor: SIGN factor -> signed
       | primary
?primary: constant
        | NAME -> header
        | QUOTED_NAME -> header
        | "(" either ")"
?constant: number
         | STRING -> string
         | TRUE -> boolean
         | FALSE -> boolean
?number: FLOAT -> approximate
       | INTEGER -> exact
?literal: constant
        | SIGN number -> signed

EQUAL.2: "=" | "<>"
ORDER: "<=" | ">=" | "<" | ">"
SIGN: "+" | "-"
SCALE: "*" | "/"
FLOAT.2: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?|[0-9]+[eE][+-]?[0-9]+[fFdD]?|[0-9]+[fFdD]/
INTEGER: /0[xX][0-9a-fA-F]+[lL]?|[0-9]+[lL]?/
STRING: /'(?:[^']|'')*'/
QUOTED_NAME: /"(?:[^"]|"")+"/
NAME: /(?:[^\W\d]|\$)[\w$]*/
%declare AND OR NOT BETWEEN IN LIKE ESCAPE IS NULL TRUE FALSE
%ignore /\s+/
"""
KEYWORDS = frozenset(["AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"])


def _keyword(name: Token) -> Token:
    """For the lexer: the token of a keyword gets the keyword's type."""
    word = name.upper()
    return name.update(type=word) if word in KEYWORDS else name



# ------------------------------------------------------------------------------------------------ operands
NUMBER, STRING, BOOLEAN, ANY = "a number", "a string", "a condition", "a header"  # kinds, worded for error messages


@dataclass(frozen=True, slots=True)
class _Operand:
    """A part of a selector: how to evaluate it, what it can be, and where it begins."""

    kind: str
    evaluate: Evaluate
    place: int
    depth: int = 1
    constant: Any = None  # of a literal
    name: str | None = None  # of a header


class _Refused(UnexpectedInput):
    """The text parses, but its types or literals are wrong."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__(what)
        self.place, self.what = place, what


def _plain(value: Any) -> Any:
    """The value as None, bool, int, float or str. What is none of these is returned as it is: it equals nothing."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):  # not a bool: callers handle the exact types of PLAIN themselves
        return int(value)
    if isinstance(value, Real | Decimal):
        return float(value)
    return value


PLAIN = frozenset([type(None), bool, int, float, str])
KINDS = {bool: BOOLEAN, int: NUMBER, float: NUMBER, str: STRING}


def _header(name: str) -> Evaluate:
    # Not `headers.get`: in CPython 3.13t that waits if another thread made the name (docs/design/broker.md).
    def header(entry: Selectable) -> Any:
        headers, value = entry.headers, None
        if name in headers:
            value = headers[name]
        return value if type(value) in PLAIN else _plain(value)

    def priority(entry: Selectable) -> Any:
        return header(entry) if name in entry.headers else entry.priority

    return priority if name == "JMSPriority" else header


def _always(value: Any) -> Evaluate:
    return lambda entry: value


def _made(kind: str, evaluate: Evaluate, parts: Sequence[_Operand], place: int) -> _Operand:
    """The operand that is made of these parts, unless they are nested too deeply."""
    depth = 1 + max(part.depth for part in parts)
    if depth > MAX_DEPTH:
        raise _Refused(place, f"more than {MAX_DEPTH} levels deep")
    return _Operand(kind, evaluate, place, depth)


NO_ENTRY: Any = None  # what literals are evaluated with: they read no entry


def _folded(made: _Operand, parts: Sequence[_Operand]) -> _Operand:
    """Evaluate arithmetic on literals alone once, when the selector is compiled."""
    if any(part.constant is None for part in parts):
        return made
    try:
        value = made.evaluate(NO_ENTRY)
    except OverflowError:
        raise _Refused(made.place, "a number that is too large to compute with an approximate one") from None
    return _Operand(NUMBER, _always(value), made.place, constant=value)


def _as_condition(operand: _Operand) -> _Operand:
    """The operand as a condition: a header is compared with TRUE."""
    if operand.kind == ANY:
        true = _Operand(BOOLEAN, _always(True), operand.place, constant=True)
        return _made(BOOLEAN, _compared("=", operand, true), [operand], operand.place)
    return _expect(operand, BOOLEAN)


def _expect(operand: _Operand, kind: str) -> _Operand:
    """Refuse an operand that cannot be of this kind. A header can be of any kind."""
    if operand.kind not in (kind, ANY):
        raise _Refused(operand.place, f"{operand.kind} (expected: {kind})")
    return operand


def _expect_header(operand: _Operand, before: str) -> None:
    if operand.name is None:
        raise _Refused(operand.place, f"{operand.kind} (expected: a header before {before})")


@v_args(inline=True)
class _Rules(Transformer[Token, _Operand]):
    """The grammar's rules. The parser calls them bottom-up with tokens and operands; no syntax tree is built."""

    def header(self, token: Token) -> _Operand:
        name = str(token) if token.type == "NAME" else token[1:-1].replace('""', '"')
        return _Operand(ANY, _header(name), _start(token), name=name)

    def string(self, token: Token) -> _Operand:
        return _literal(STRING, _unquoted(token), token)

    def exact(self, token: Token) -> _Operand:
        digits = token.rstrip("lL").lower()
        base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
        try:
            return _literal(NUMBER, int(digits, base), token)
        except ValueError:
            what = f"{token} (expected: an octal number after the leading 0, at most 4300 digits)"
            raise _Refused(_start(token), what) from None

    def approximate(self, token: Token) -> _Operand:
        return _literal(NUMBER, float(token.rstrip("fFdD")), token)

    def boolean(self, token: Token) -> _Operand:
        return _literal(BOOLEAN, token.type == "TRUE", token)

    # ---------------------------------------------------------------- conditions
    def either(self, first: _Operand, *rest: Any) -> _Operand:
        return self._joined(_any_of, first, rest)

    def both(self, first: _Operand, *rest: Any) -> _Operand:
        return self._joined(_all_of, first, rest)

    def _joined(self, join: Callable[[Sequence[Evaluate]], Evaluate], first: _Operand, rest: Sequence[Any]) -> _Operand:
        parts = [_as_condition(part) for part in (first, *rest[1::2])]
        return _made(BOOLEAN, join([part.evaluate for part in parts]), parts, first.place)

    def negation(self, word: Token, operand: _Operand) -> _Operand:
        operand = _as_condition(operand)
        return _made(BOOLEAN, _not(operand.evaluate), [operand], _start(word))

    def comparison(self, left: _Operand, sign: Token, right: _Operand) -> _Operand:
        if sign.type == "ORDER":
            _expect(left, NUMBER)
            _expect(right, NUMBER)
        return _made(BOOLEAN, _compared(str(sign), left, right), [left, right], left.place)

    def between(
        self, value: _Operand, inverted: Token | None, _b: Token, low: _Operand, _a: Token, high: _Operand
    ) -> _Operand:
        parts = [_expect(part, NUMBER) for part in (value, low, high)]
        inside = _all_of([_compared(">=", value, low), _compared("<=", value, high)])
        return _made(BOOLEAN, _not(inside) if inverted else inside, parts, value.place)

    def among(self, header: _Operand, inverted: Token | None, _in: Token, *literals: _Operand) -> _Operand:
        _expect_header(header, "IN")
        found = _among(header.evaluate, [literal.constant for literal in literals])
        return _made(BOOLEAN, _not(found) if inverted else found, [header], header.place)

    def like(
        self,
        header: _Operand,
        inverted: Token | None,
        _like: Token,
        pattern: Token,
        _esc: Token | None,
        escape: Token | None,
    ) -> _Operand:
        _expect_header(header, "LIKE")
        matched = _matching(header.evaluate, _pattern(pattern, escape))
        return _made(BOOLEAN, _not(matched) if inverted else matched, [header], header.place)

    def is_null(self, header: _Operand, _is: Token, inverted: Token | None, _null: Token) -> _Operand:
        _expect_header(header, "IS")
        value, wanted = header.evaluate, inverted is None
        return _made(BOOLEAN, lambda entry: (value(entry) is None) is wanted, [header], header.place)

    # ---------------------------------------------------------------- values
    def sum(self, first: _Operand, *rest: Any) -> _Operand:
        parts = [_expect(part, NUMBER) for part in (first, *rest[1::2])]
        steps = [(ARITHMETIC[sign], part.evaluate) for sign, part in zip(rest[::2], parts[1:], strict=True)]
        return _folded(_made(NUMBER, _computed(first.evaluate, steps), parts, first.place), parts)

    term = sum

    def signed(self, sign: Token, operand: _Operand) -> _Operand:
        _expect(operand, NUMBER)
        zero_plus_or_minus = _computed(_always(0), [(ARITHMETIC[sign], operand.evaluate)])
        return _folded(_made(NUMBER, zero_plus_or_minus, [operand], _start(sign)), [operand])


def _start(token: Token) -> int:
    return token.start_pos or 0


def _literal(kind: str, value: Any, token: Token) -> _Operand:
    return _Operand(kind, _always(value), _start(token), constant=value)


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


# ------------------------------------------------------------------------------------------------ conditions
def _not(operand: Evaluate) -> Evaluate:
    def inverse(entry: Selectable) -> Any:
        value = operand(entry)
        return None if value is None else not value

    return inverse


def _all_of(operands: Sequence[Evaluate]) -> Evaluate:
    def both(entry: Selectable) -> Any:
        result: bool | None = True
        for operand in operands:
            value = operand(entry)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return both


def _any_of(operands: Sequence[Evaluate]) -> Evaluate:
    def either(entry: Selectable) -> Any:
        result: bool | None = False
        for operand in operands:
            value = operand(entry)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return either


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def _compared(sign: str, left: _Operand, right: _Operand) -> Evaluate:
    compare, comparable = COMPARISONS[sign], (NUMBER, STRING, BOOLEAN) if sign in ("=", "<>") else (NUMBER,)
    left_value, right_value = left.evaluate, right.evaluate

    def comparison(entry: Selectable) -> Any:
        a, b = left_value(entry), right_value(entry)
        if a is None or b is None:
            return None
        kind = KINDS.get(type(a))
        return kind in comparable and kind is KINDS.get(type(b)) and compare(a, b)

    if left.name not in (None, "JMSPriority") and right.constant is not None:
        return _compared_with(left.name, compare, right.constant, comparison)
    return comparison


def _compared_with(name: str, compare: Callable[[Any, Any], bool], constant: Any, otherwise: Evaluate) -> Evaluate:
    """A faster path for a header compared with a literal, when the header has the literal's type."""
    usual, also = (int, float) if KINDS[type(constant)] is NUMBER else (type(constant), type(constant))

    def comparison(entry: Selectable) -> Any:
        headers, value = entry.headers, None
        if name in headers:
            value = headers[name]
        kind = type(value)
        return compare(value, constant) if kind is usual or kind is also else otherwise(entry)

    return comparison


def _among(header: Evaluate, constants: Sequence[Any]) -> Evaluate:
    """IN. The set holds (kind, value), because TRUE equals 1. Equal numbers have equal hashes, exact or not."""
    wanted = frozenset((KINDS[type(constant)], constant) for constant in constants)

    def among(entry: Selectable) -> Any:
        value = header(entry)
        if value is None:
            return None
        kind = KINDS.get(type(value))
        return kind is not None and (kind, value) in wanted

    return among


def _matching(header: Evaluate, matches: Callable[[str], Any]) -> Evaluate:
    def like(entry: Selectable) -> Any:
        value = header(entry)
        if isinstance(value, str):
            return matches(value) is not None
        return None if value is None else False

    return like


def _pattern(pattern: Token, escape: Token | None) -> Callable[[str], Any]:
    """A LIKE pattern as a regular expression. Each part between two % is matched at its first place from the left, in
    an atomic group without backtracking. So a match takes at most (length of the text) x (length of the pattern)."""
    parts = _like_parts(_unquoted(pattern), _start(pattern), _escape_character(escape))
    first, *middle = parts
    if not middle:
        return re.compile(first, re.DOTALL).fullmatch
    *middle, last = middle
    return re.compile(first + "".join(f"(?>.*?{part})" for part in middle if part) + f".*{last}", re.DOTALL).fullmatch


def _escape_character(escape: Token | None) -> str | None:
    if escape is None:
        return None
    character = _unquoted(escape)
    if len(character) != 1:
        raise _Refused(_start(escape), f"ESCAPE {escape} (expected: one character)")
    return character


def _like_parts(text: str, place: int, escape: str | None) -> list[str]:
    """The regular expressions between the % of a pattern. A leading or trailing % gives an empty one."""
    parts, characters = [""], iter(text)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise _Refused(place, f"a pattern that ends in its escape character {escape}")
            parts[-1] += re.escape(escaped)
        elif character == "%":
            parts.append("")
        else:
            parts[-1] += "." if character == "_" else re.escape(character)
    return parts


# ------------------------------------------------------------------------------------------------ arithmetic
def _divided(a: Any, b: Any) -> Any:
    if b == 0:
        return None
    if type(a) is type(b) is int:
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    return a / b


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divided,
}  # fmt: skip


def _computed(first: Evaluate, steps: Sequence[tuple[Callable[[Any, Any], Any], Evaluate]]) -> Evaluate:
    """Evaluate from left to right. `steps` are of one precedence: + and -, or * and /."""

    def value(entry: Selectable) -> Any:
        result = first(entry)
        for operation, operand in steps:
            other = operand(entry)
            if KINDS.get(type(result)) is not NUMBER or KINDS.get(type(other)) is not NUMBER:
                return None
            result = operation(result, other)
        return result

    return value


# ------------------------------------------------------------------------------------------------ errors
VALUES = frozenset(["FLOAT", "INTEGER", "STRING", "NAME", "QUOTED_NAME", "TRUE", "FALSE", "SIGN", "LPAR", "NOT"])
SPELLINGS = {
    "EQUAL": "= <>", "ORDER": "< <= > >=", "SIGN": "+ -", "SCALE": "* /", "LPAR": "(", "RPAR": ")", "COMMA": ",",
    "$END": "the end",
    "STRING": "a string", "FLOAT": "a number", "INTEGER": "a number", "NAME": "a header", "QUOTED_NAME": "a header",
}  # fmt: skip


def _expectations(expected: Any) -> str:
    """The terminals that the parser could go on with, in words. Where any value may stand that is said as a whole."""
    names: set[str] = set(expected or ())
    words = []
    if VALUES - {"NOT"} <= names:
        names -= VALUES
        words = ["a header, a literal, NOT or ("]
    return ", ".join(words + sorted({SPELLINGS.get(name, name) for name in names}))


def _explained(text: str, error: UnexpectedInput) -> tuple[int, str]:
    """The place of the error, and what is wrong there."""
    if isinstance(error, _Refused):
        return error.place, error.what
    place = error.pos_in_stream or 0
    if isinstance(error, UnexpectedCharacters):
        unended = {"'": "a string without its closing '", '"': 'a name without its closing "'}
        return place, unended.get(text[place], f"{text[place]!r} has no meaning in a selector")
    assert isinstance(error, UnexpectedToken)
    expected = f"(expected: {_expectations(error.expected)})"
    if error.token.type == "$END":
        return len(text), f"{'the end' if text.strip() else 'nothing at all'} {expected}"
    return place, f"{str(error.token)!r} {expected}"


def _message(text: str, error: UnexpectedInput) -> str:
    """The error and, below it, the line with a caret under the place."""
    place, what = _explained(text, error)
    error.pos_in_stream = place  # type: ignore[assignment]  # lark declares None, and sets ints
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
    context = indent(error.get_context(text, span=20).removesuffix("\n"), "  ", lambda line: True)
    return f"selector, line {line}, column {column}: {what}\n{context}"


# Shared by all threads: each parse keeps its state to itself.
PARSER = Lark(
    GRAMMAR,
    parser="lalr",
    lexer="basic",
    transformer=_Rules(),
    lexer_callbacks={"NAME": _keyword},
    maybe_placeholders=True,
)
