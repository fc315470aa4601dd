"""Writes the docstrings of the compiled queues into their stubs, where editors look for them.

    python tools/stub_docstrings.py            writes them
    python tools/stub_docstrings.py --check    fails if a stub has others

Of overloads the first has it, of a property the getter. Private members have none, and a class that stands in no public
module neither.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "manytail"
STUBS = ("_consumers", "_entries", "_indexqueue", "_multiqueue", "_orders", "_pubsub", "_queue", "_subscriptions")
WIDTH = 120
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstring(owner: object, name: str) -> str:
    """What the compiled module says, without the signature that Cython puts into the first line."""
    found = vars(owner).get(name)
    text = inspect.cleandoc(getattr(found, "__doc__", None) or "")
    return re.sub(rf"\A(?:\w+\.)?{name}\(.*\)(?: -> .*)?\n*", "", text)


def as_lines(text: str, indent: str) -> list[str]:
    lines = text.replace("\\", "\\\\").splitlines()
    closed = [*lines[:-1], f'{lines[-1]}"""'] if len(lines) == 1 else [*lines, '"""']
    if len(indent) + 3 + len(closed[0]) > WIDTH:
        closed.insert(0, "\\")  # the text begins on the next line
    return [f'{indent}"""{closed[0]}', *(f"{indent}{line}" if line else "" for line in closed[1:])]


def first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def has_docstring(node: Definition) -> bool:
    return ast.get_docstring(node) is not None


def put(lines: list[str], node: Definition, text: str) -> None:
    """Change the lines of one definition. Those after it have been changed already."""
    indent = " " * (node.col_offset + 4)
    body = node.body[0]
    if has_docstring(node):
        lines[body.lineno - 1 : body.end_lineno] = as_lines(text, indent)
    elif isinstance(node, ast.ClassDef) and not isinstance(body, ast.Expr):
        lines[first_line(body) - 1 : first_line(body) - 1] = as_lines(text, indent)
    else:
        head = lines[body.lineno - 1].removesuffix("...").rstrip()
        lines[body.lineno - 1 : body.lineno] = [head, *as_lines(text, indent)]


def documented(node: Definition, owner: object) -> list[tuple[Definition, str]]:
    """A definition and those inside it, with their docstrings."""
    found = [(node, docstring(owner, node.name))]
    if isinstance(node, ast.ClassDef):
        seen: set[str] = set()
        for inner in node.body:
            if isinstance(inner, DEFINITIONS) and not inner.name.startswith("_") and inner.name not in seen:
                seen.add(inner.name)
                found += documented(inner, getattr(owner, node.name))
    return [(each, text) for each, text in found if text]


def with_docstrings(name: str) -> str:
    module = importlib.import_module(f"manytail.{name}")
    text = (PACKAGE / f"{name}.pyi").read_text(encoding="utf-8")
    lines = text.splitlines()
    nodes = [node for node in ast.parse(text).body if isinstance(node, DEFINITIONS) and not node.name.startswith("_")]
    found = [pair for node in nodes if hasattr(module, node.name) for pair in documented(node, module)]
    for node, doc in sorted(found, key=lambda pair: -pair[0].body[0].lineno):
        put(lines, node, doc)
    return "\n".join(lines) + "\n"


def main() -> None:
    for name in STUBS:
        path, text = PACKAGE / f"{name}.pyi", with_docstrings(name)
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path} is not what tools/stub_docstrings.py writes: run it")


if __name__ == "__main__":
    main()
