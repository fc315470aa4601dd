"""What `make docs` changes between the repository and the site: links, and docstrings.

mkdocs calls on_page_markdown. griffe reads docstrings for the reference and calls Docstrings.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]
SAME_AS = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}  # pages that are files of the repository
LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)((?:#[^)]*)?)\)")
DOCTEST = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> )\S.*\n?)*)+", re.MULTILINE)

# `timeout: ...`, `ValueError, TypeError: ...` or `Progress: ...` at the beginning of a sentence.
LABEL = re.compile(r"([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*): (?=\S)")
LABELLED = re.compile(rf"(?<=[.)])\s+(?={LABEL.pattern.replace('(', '(?:', 1)})")
INDENTED = re.compile(r"""\n {4,}(?=(?:"\w+"|[a-z ]+): )""")
ERRORS = {"Empty", "Full", "ShutDown", "Lagged", "DeadlineExceeded", "BudgetExceeded", "BreakerOpen"}
COMPILED = ("manytail._", "manytail.queue.Queue")  # classes that griffe cannot read
# Of manytail.mapping: their docstrings are made of the options.
MADE = ("concurrent_map", "aconcurrent_map", "Caller", "AsyncCaller")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """A link to a file of the repository becomes a link to its page of the site; without a page, the file's path."""
    name = page.file.src_uri
    source = SAME_AS.get(name, f"docs/{name}")
    if name in SAME_AS:
        markdown = (ROOT / source).read_text(encoding="utf-8")

    def replaced(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2]))
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{source}: there is no file {path}, to which [{found[1]}] leads")
        for page_name, same in SAME_AS.items():
            path = f"docs/{page_name}" if path == same else path
        if not path.startswith("docs/"):
            return found[1] if f"`{path}`" == found[1] else f"{found[1]} (`{path}`)"
        return f"[{found[1]}]({posixpath.relpath(path, posixpath.dirname(f'docs/{name}'))}{found[3]})"

    return LINK.sub(replaced, markdown)


class Docstrings(griffe.Extension):
    """Doctests become blocks of code, and sentences like `timeout: seconds to wait.` the items of a list.

    The signature that Cython writes into a docstring is cut: the page shows it. Of a class that is compiled, or whose
    docstring is assigned, griffe sees neither signature nor docstring in the source; the class itself says both.
    """

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.is_class and obj.path.startswith(COMPILED):
            ask_class(obj)
        if obj.name in MADE and obj.path.startswith("manytail.mapping."):
            made = inspect.getdoc(getattr(importlib.import_module("manytail.mapping"), obj.name))
            obj.docstring = griffe.Docstring(str(made), parent=obj)
        if obj.docstring is None:
            return
        first, _, rest = obj.docstring.value.partition("\n")
        text = rest.lstrip("\n") if first.startswith(f"{obj.name}(") else obj.docstring.value
        text = DOCTEST.sub(lambda found: f"\n```pycon\n{found[0].rstrip()}\n```\n", text)
        obj.docstring.value = "\n\n".join(map(listed, re.split(r"\n\s*\n", text)))

    def on_members(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.is_class and obj.path.startswith(COMPILED):
            obj.members.pop("__init__", None)  # all that it says is (*args, **kwargs)


def ask_class(obj: griffe.Object) -> None:
    """Put the signature of a class before its docstring, unless only other objects make it."""
    module, _, name = obj.path.rpartition(".")
    found = getattr(importlib.import_module(module), name, None)
    text = inspect.getdoc(found)
    if text is None or issubclass(found, tuple | enum.Enum | BaseException):
        return
    try:
        signature = inspect.signature(found)
    except ValueError:  # of a compiled class that says none
        return
    made_by_others = any(one.kind is one.VAR_POSITIONAL for one in signature.parameters.values())
    shown = "" if made_by_others else f"```python\n{name}{signature}\n```\n\n"
    obj.docstring = griffe.Docstring(shown + text, parent=obj)


def listed(paragraph: str) -> str:
    """A paragraph whose sentences begin with labels, or with indented lines, as a list in Markdown."""
    if "```" in paragraph or paragraph.startswith((">>>", "- ", "    ", "|")):
        return paragraph
    out: list[str] = []
    for part in LABELLED.split(INDENTED.sub("\n\0", paragraph.replace("**", r"\*\*"))):
        found = LABEL.match(part)
        if found:
            is_code = found[1][0].islower() or found[1].endswith("Error") or found[1].split(",")[0] in ERRORS
            part = f"**{f'`{found[1]}`' if is_code else found[1]}**: {part[found.end() :]}"
        text, *items = part.split("\n\0")
        out.append("- " + " ".join(text.split()) if found else f"{text}\n")
        out += [f"{'    ' if found else ''}- {' '.join(item.split())}" for item in items]
    return "\n".join(out)
