"""The core grows only with the fix of a defect: its lines of code and its statements are counted.

The core is what is in pyx/ and include/. Comments, docstrings and blank lines are free. Statements are counted beside
the lines, so that joining lines gains nothing. A change that makes the core smaller lowers MOST to what it leaves.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = [path for folder in ("pyx", "include") for path in sorted((ROOT / folder).rglob("*.[ph]*"))]
MOST = {"lines": 12_103, "statements": 12_160}

STRING = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
PROSE_OF_C = re.compile(rf"{STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
PROSE_OF_CYTHON = re.compile(rf'""".*?"""|{STRING}|\#[^\n]*|\\\n', re.DOTALL)
BLOCK = re.compile(r"(?:if|elif|else|for|while|with|try|except|finally|def|cdef|cpdef|class)\b")


def code_lines(text: str) -> int:
    count, in_docstring = 0, False
    for line in map(str.strip, text.splitlines()):
        if in_docstring:
            in_docstring = '"""' not in line
        elif line.startswith(('"""', 'r"""')):
            in_docstring = line.count('"""') == 1
        elif line and not line.startswith(("#", "//", "/*", "*")):
            count += 1
    return count


def statements(text: str, suffix: str) -> int:
    """Of C: semicolons, opening braces, and directives, which are no lines of code.

    Of Cython: simple statements, and heads of blocks.
    """
    if suffix == ".h":
        return len(re.findall(r"[;{]|^[ \t]*#", PROSE_OF_C.sub("", text), re.MULTILINE))
    count = 0
    for line in logical_lines(PROSE_OF_CYTHON.sub(lambda found: "0" if found[0][0] in "\"'" else "", text)):
        head, _, body = line.partition(": ")
        count += line.count(";") + 1 + bool(BLOCK.match(head) and body)
    return count


def logical_lines(text: str) -> list[str]:
    """Lines of Cython without what is in brackets. A line of a string alone is a docstring."""
    while (smaller := re.sub(r"\([^()]*\)|\[[^][]*\]|\{[^{}]*\}", "0", text)) != text:
        text = smaller
    return [line for line in map(str.strip, text.splitlines()) if line not in ("", "0", "r0")]


def test_the_core_does_not_grow():
    texts = [(path.read_text(), path.suffix) for path in CORE]
    assert sum(code_lines(text) for text, _ in texts) <= MOST["lines"]
    assert sum(statements(text, suffix) for text, suffix in texts) <= MOST["statements"]


@pytest.mark.parametrize(
    ("text", "suffix", "lines", "expected"),
    [
        ('"""Says\n\nwhat."""\n\n# why\ncdef int x = f(1,\n             2)\n', ".pyx", 2, 1),
        ("a = 1; b = 2\n", ".pyx", 1, 2),
        ("if a: b = 1\nelse:\n    c = ':;'\n", ".pyx", 3, 4),
        ("from manytail._c cimport (\n    a, b,\n    c,\n)\n", ".pxd", 4, 1),
        ("a = b + \\\n    c\n", ".pyx", 2, 1),
        ("/* Says what.\n * Why. */\n#define X 1\nint f(void) { g(); return 0; } // so\n", ".h", 1, 4),
    ],
)
def test_what_is_counted(text, suffix, lines, expected):
    assert (code_lines(text), statements(text, suffix)) == (lines, expected)
