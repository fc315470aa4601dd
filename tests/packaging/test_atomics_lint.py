"""Every atomic operation outside atomics.h says what it pairs with, or why it needs no partner.

The operations carry their order in their name (mt_load_acquire_u32; ps_ ones are sequentially consistent). One whose
order is `relaxed` needs `relaxed because: ...`, any other one `pairs with: ...`, on a line of its statement or in the
comment lines directly above it. Orders, compilers and Python appear only in the headers that are made for them.

A partner is named as `pairs with: OPERATION in FUNCTION, FUNCTION; OPERATION in FUNCTION`, then a stop, a colon or a
bracket and any prose. Each function must exist and contain that operation on the same field. `itself` is the same
operation in other threads, `nothing` says why there is none.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADERS = sorted((ROOT / "include").rglob("*.h"))
CYTHON = sorted(
    path
    for folder in ("pyx", "python")
    for path in (ROOT / folder).rglob("*.p[yx][xdi]")
    if path.suffix in (".pyx", ".pxd", ".pxi")
)
SOURCES = [path for path in [*HEADERS, *CYTHON] if path.name != "atomics.h"]

OPERATION = re.compile(r"\b(?:mt|ps)_(?:load|store|xchg|cas|fetch_add|fetch_sub|fetch_or|fetch_and|fence)_?(\w*)\s*\(")
# A declaration in a .pxd, or in `cdef extern from`.
DECLARATION = re.compile(r"^\s*(?:\w+[\s*]+)+(?:mt|ps)_\w+\s*\([^()]*\)\s*(?:noexcept)?\s*(?:nogil)?\s*$")
COMMENT = re.compile(
    r"^\s*(?:/\*|\*|//|#(?!\s*(?:if|ifdef|ifndef|else|elif|endif|define|include|undef|error|pragma)\b))"
)


def comment_lines(lines: list[str]) -> set[int]:
    """Numbers of the lines that contain only comment, including block comments of several lines."""
    found, inside = set(), False
    for number, line in enumerate(lines):
        if inside or COMMENT.match(line):
            found.add(number)
        opened, closed = line.rfind("/*"), line.rfind("*/")
        if opened > closed:
            inside = True
        elif closed >= 0:
            inside = False
    return found


def first_line_of_statement(lines: list[str], number: int, comments: set[int]) -> int:
    """The first line of the statement that line `number` belongs to."""
    while number > 0 and number - 1 not in comments:
        before = re.sub(r"/\*.*?\*/|//.*$|\s#\s.*$", "", lines[number - 1]).rstrip(" \\")
        if not before or before.endswith((";", "{", "}", ":")) or before.lstrip().startswith("#"):
            break
        if not continues(before):
            break
        number -= 1
    return number


def continues(before: str) -> bool:
    """Whether a statement of C or Cython continues after this line: a bracket is open, or it ends in an operator."""
    return sum(map(before.count, "([")) > sum(map(before.count, ")]")) or bool(
        re.search(r"(?:[=+|&,?<>*/-]|\b(?:and|or|not|return))$", before)
    )


def operations(text: str) -> Iterator[tuple[int, str, str]]:
    """Number, code and comments of each line that may have an operation. The comments are those of its statement."""
    lines = text.splitlines()
    comments = comment_lines(lines)
    for number, line in enumerate(lines):
        if number not in comments and not DECLARATION.match(line):
            first = first_line_of_statement(lines, number, comments)
            said = "\n".join([*comment_block_above(lines, first, comments), *lines[first : number + 1]])
            yield number + 1, re.sub(r"/\*.*?\*/|//.*$|\s#\s.*$", "", line), said


def unexplained(text: str) -> list[str]:
    """`number: code` of each operation whose comment is missing or of the wrong kind."""
    found = []
    for number, code, said in operations(text):
        for operation in OPERATION.finditer(code):
            needed = "relaxed because:" if "relaxed" in operation[1] else "pairs with:"
            if needed not in said:
                found.append(f"{number}: {code.strip()}   <- {needed}")
    return found


def comment_block_above(lines: list[str], number: int, comments: set[int]) -> list[str]:
    block = []
    while number - 1 in comments:
        number -= 1
        block.insert(0, lines[number])
    return block


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_atomic_operation_is_explained(path):
    assert unexplained(path.read_text()) == []


def test_there_are_operations_to_look_at():
    assert sum(len(OPERATION.findall(path.read_text())) for path in SOURCES) > 10


@pytest.mark.parametrize(
    "text",
    [
        "x = mt_load_acquire_u64(&q->tail);",
        "/* what it does */\nx = mt_load_acquire_u64(&q->tail);",
        "/* relaxed because: wrong kind */\nx = mt_load_acquire_u64(&q->tail);",
        "/* pairs with: wrong kind */\nx = mt_load_relaxed_u64(&q->tail);",
        "/* pairs with: the store in put */\ny = 1;\nx = mt_load_acquire_u64(&q->tail);",
        "/* pairs with: the store in put */\n\nx = mt_load_acquire_u64(&q->tail);",
        "/* pairs with: the load in get */\nmt_store_release_ptr(&a, b);\nmt_store_release_ptr(&c, d);",
        "/* relaxed because: a guess */\nif (!mt_cas_acquire_u32(&l, mt_load_relaxed_u32(&l), 1))",
        "    # only a word\n    mt_fetch_add_acq_rel_u32(&q.n, 1)",
        "while not mt_xchg_seq_cst_u32(&q.n, 1):\n    # pairs with: below, not above\n    break",
        "    if ps_cas_u32(&q.trimming, &busy, 0):\n        return",
    ],
)
def test_the_check_finds_what_lacks_its_comment(text):
    assert len(unexplained(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "x = mt_load_acquire_u64(&q->tail); /* pairs with: the store in put */",
        "/* pairs with: the store in put */\nx = mt_load_acquire_u64(&q->tail);",
        "/* pairs with: the store in put,\n * and that in put_many */\nx = mt_load_acquire_u64(&q->tail);",
        "/* pairs with: the store in put,\n   and that in put_many */\nx = mt_load_acquire_u64(&q->tail);",
        "/* relaxed because: a guess; pairs with: unlock */\n"
        "if (!mt_cas_acquire_u32(&l,\n        mt_load_relaxed_u32(&l), 1))",
        "    # relaxed because: written by this thread only\n    n = mt_load_relaxed_u64(&q.n)",
        "    # pairs with: get\n    if ready and (\n        mt_xchg_seq_cst_u32(&q.n, 1)\n    ):",
        "    uint64_t mt_load_acquire_u64(mt_u64 *p) noexcept nogil",
        "/* mt_load_acquire_u64(p) in prose */",
        "    bint ps_cas_u32(mt_atomic_u32 *, uint32_t *expected, uint32_t)",
    ],
)
def test_the_check_accepts_what_is_explained(text):
    assert unexplained(text) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_only_atomics_h_names_memory_orders(path):
    assert (
        re.findall(
            r"memory_order\w*|stdatomic\.h|\b__(?:atomic|sync)_\w+|\b_?Interlocked\w+|\batomic_\w+_explicit\b",
            path.read_text(),
        )
        == []
    )


# ------------------------------------------------------------------------------------------------------------- partners
WIDTH = r"(?:_(?:u8|u16|u32|u64|i32|i64|ptr|uptr))?"
CALL = re.compile(
    rf"\b((?:mt|ps)_(?:load|store|xchg|cas|fetch_(?:add|sub|or|and))\w*?){WIDTH}\s*\(\s*([^,()]*(?:\([^()]*\)[^,()]*)*)"
)
C_FUNCTION = re.compile(r"^[A-Za-z_][\w\s*]*?\b(\w+)\((?:[^;{])*?\)\s*\{", re.MULTILINE)
CYTHON_FUNCTION = re.compile(r"^[ \t]*(?:cdef|cpdef|def|async def)\b[^\n=]*?\b(\w+)\s*\(", re.MULTILINE)
NAMED = re.compile(rf"((?:mt|ps)_\w+?){WIDTH}(?: of \w+)? (?:in (\w+(?:, (?!(?:mt|ps)_\w+ )\w+)*)|(above|below))")
NO_PARTNER = re.compile(r"itself\b|nothing\b|as above\b")


def field(argument: str) -> str:
    """`rung` of `&self.rung`, `next` of `&e->next`, `slots` of `&c->slots[i]`."""
    words = re.findall(r"\w+", re.sub(r"<[^>]*>|\[[^\]]*\]", "", argument))
    return words[-1] if words else ""


def functions(path: Path) -> list[tuple[str, str]]:
    """Names and texts of the functions, without comments."""
    comments, begins = (r"(?s:/\*.*?\*/)", C_FUNCTION) if path.suffix == ".h" else (r"#\s.*", CYTHON_FUNCTION)
    text = re.sub(comments, "", path.read_text())
    starts = [*begins.finditer(text)]
    ends = [*(begin.start() for begin in starts[1:]), len(text)]
    return [(begin[1], text[begin.start() : end]) for begin, end in zip(starts, ends, strict=False)]


def operations_of(paths: list[Path]) -> dict[str, set[tuple[str, str]]]:
    """By function name: its (operation, field) pairs."""
    found: dict[str, set[tuple[str, str]]] = {}
    for path in paths:
        for name, text in functions(path):
            found.setdefault(name, set()).update((call[1], field(call[2])) for call in CALL.finditer(text))
    return found


def wrong_partners(text: str, known: dict[str, set[tuple[str, str]]]) -> list[str]:
    """`number: what is wrong` of each operation whose named partner is missing. `known`: see operations_of."""
    here = {(call[1], field(call[2])) for call in CALL.finditer(text)}
    found = []
    for number, code, said in operations(text):
        fields = {field(call[2]) for call in CALL.finditer(code) if "relaxed" not in call[1]}
        prose = " ".join(line.strip().strip("/*#").strip() for line in said.splitlines()) if fields else ""
        for clause in re.findall(r"pairs with:\s*([^.:(]*)", prose):
            found += [f"{number}: {problem}" for problem in problems(clause, fields, {**known, "": here})]
    return found


def problems(clause: str, fields: set[str], known: dict[str, set[tuple[str, str]]]) -> list[str]:
    """What is wrong with the partners that a comment names. "above" and "below" mean the whole file, known[""]."""
    named = NAMED.findall(re.split(r"[,;]? (?:after|before) ", clause)[0])
    if not named and not NO_PARTNER.match(clause):
        return [f"names no partner: {clause!r}"]
    found = []
    for operation, functions, _ in named:
        for place in functions.split(", "):
            if place not in known:
                found.append(f"there is no function {place}")
            elif not any((operation, one) in known[place] for one in fields):
                found.append(f"{place or 'the file'} has no {operation} of {sorted(fields)}")
    return found


def test_every_partner_exists():
    known = operations_of([*SOURCES, ROOT / "include" / "manytail" / "atomics.h"])
    assert {path.name: wrong for path in SOURCES if (wrong := wrong_partners(path.read_text(), known))} == {}


@pytest.mark.parametrize(
    "comment",
    [
        "mt_store_release in nobody",
        "mt_store_release in other",
        "mt_cas_acquire in put",
        "the store in put",
        "mt_store_release in put, other",
        "put",
    ],
)
def test_a_wrong_partner_is_found(comment):
    known = {"put": {("mt_store_release", "tail")}, "other": {("mt_store_release", "head")}}
    assert wrong_partners(f"x = mt_load_acquire_u64(&q->tail); /* pairs with: {comment}: why */", known) != []


@pytest.mark.parametrize(
    "comment",
    [
        "mt_store_release in put",
        "mt_store_release in put; mt_xchg_acq_rel in shut",
        "itself in other threads",
        "nothing, it is alone",
    ],
)
def test_a_partner_that_exists_is_accepted(comment):
    known = {"put": {("mt_store_release", "tail")}, "shut": {("mt_xchg_acq_rel", "tail")}}
    assert wrong_partners(f"    x = mt_load_acquire_u64(&q.tail)     # pairs with: {comment}: why", known) == []


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.name)
def test_only_two_headers_know_python(path):
    assert ("Python.h" in path.read_text()) <= (path.name in ("pygc.h", "objects.h"))
