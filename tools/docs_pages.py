"""Writes what of the docs is made from elsewhere: an anchor for each option, llms.txt from the site's navigation, and
the page that compares the published designs with the code.

    python tools/docs_pages.py [--check]

--check writes nothing: the exit status is 1 if a file differs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import fill

import from_designs

from manytail.mapping._options import OPTIONS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SAME_AS = {"index.md": ROOT / "README.md", "changelog.md": ROOT / "CHANGELOG.md"}

HEAD = """\
# Options

`concurrent_map`, `aconcurrent_map`, `Caller` and `AsyncCaller` have these options.
[`map_arrow`](../guides/arrow.md) and [`map_concurrent`](../spark.md) have most of them, with the same meanings. For
programs, see the [guide](../guides/mapping.md). Callers do not have ABSENT.

"""
SUMMARY = """\
# manytail

> Calls a slow function on every item of an iterable or on every row of a DataFrame: many calls at once, in order, fair
> between keys, within rates and budgets, with retries, resumed after a crash. Below it, concurrent queues in Cython.
> Alpha, not released: install it from a checkout with `pip install .`.
"""


def options() -> str:
    """A section for each option."""
    *others, last = [f"`{one.name}`" for one in OPTIONS if not one.of_callers]
    absent = f"{', '.join(others)} or {last}"
    parts = [HEAD.replace("ABSENT", absent)]
    for one in OPTIONS:
        callers = [f"In Callers: {one.of_callers}"] if one.of_callers not in ("", one.about) else []
        texts = [one.about[0].upper() + one.about[1:], *callers]
        kind = one.kind.replace("_T", "Item")
        about = "\n\n".join(fill(" ".join(text.split()), 120, break_on_hyphens=False) for text in texts)
        head = f"`{one.name}: {kind} = {shown(one.default)}`"
        parts.append(f"## {one.name}\n\n{head}\n\n{about}\n\nExample: `{one.example}`\n\n")
    return "".join(parts).rstrip() + "\n"


def shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def llms(made: dict[Path, str]) -> str:
    """The pages of the site by section, each with its first sentence. `made`: pages that may not be written yet."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    lines = [SUMMARY]
    for found in re.finditer(r'^ +- "?(.*?)"?:(?: (\S+\.md))?$', navigation, re.MULTILINE):
        name, path = found.groups()
        lines.append(f"- [{name}]({path}): {first_sentence(made, path)}" if path else f"\n## {name}\n")
    return "\n".join(lines) + "\n"


def first_sentence(made: dict[Path, str], path: str) -> str:
    """Of the first paragraph; of pages that begin with a table or a list, the title."""
    text = made.get(DOCS / path) or SAME_AS.get(path, DOCS / path).read_text(encoding="utf-8")
    title, *blocks = re.split(r"\n\s*\n", text)
    first = next((block for block in blocks if re.match(r"[A-Za-z*\[>]|`(?!``)", block)), title)
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(first.lstrip("> #").split())).replace("**", "")
    return re.split(r"(?<=[.!?]) ", plain)[0].rstrip(":")


def main(arguments: list[str]) -> int:
    made = {
        DOCS / "reference" / "options.md": options(),
        DOCS / "design" / "from-designs.md": from_designs.page(),
    }
    made[DOCS / "llms.txt"] = llms(made)
    differing = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if arguments == ["--check"]:
        print(*(f"{path.relative_to(ROOT)}: run `python tools/docs_pages.py`" for path in differing), sep="\n")
        return int(bool(differing))
    for path in differing:
        path.write_text(made[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
