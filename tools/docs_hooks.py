"""What `make docs` changes between the repository and the site: links, and docstrings.

mkdocs calls on_page_markdown. griffe reads docstrings for the reference and calls Docstrings.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]
SAME_AS = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}  # pages that are files of the repository
LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)((?:#[^)]*)?)\)")
DOCTEST = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> )\S.*\n?)*)+", re.MULTILINE)


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
    """Doctests become blocks of code. The signature that Cython writes into a docstring is cut: the page shows it."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None:
            return
        first, _, rest = obj.docstring.value.partition("\n")
        text = rest.lstrip("\n") if first.startswith(f"{obj.name}(") else obj.docstring.value
        obj.docstring.value = DOCTEST.sub(lambda found: f"\n```pycon\n{found[0].rstrip()}\n```\n", text)
