"""Writes what of the docs is made from elsewhere: an anchor for each option, llms.txt from the site's navigation, and
the page that compares the published designs with the code.

    python tools/docs_pages.py [--check]

--check writes nothing: the exit status is 1 if a file differs.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from textwrap import fill

import from_designs

from manytail import Caller, concurrent_map

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


EXAMPLES = {
    "workers": "workers=32, workers=(1, 200)",
    "max_in_flight": "max_in_flight=100",
    "order": 'order="completion"',
    "key": "key=lambda item: item.tenant",
    "per_key": "per_key=4",
    "weights": 'weights={"premium": 3}',
    "priority": "priority=lambda item: item.level",
    "batch": "batch=Batch(100, linger=0.5)",
    "timeout": "timeout=30",
    "deadline": "deadline=3_600",
    "retry": "retry=Retry.http()",
    "breaker": "breaker=Breaker(5, reset=30)",
    "errors": 'errors="return"',
    "max_failures": 'errors="drop", max_failures=100',
    "fatal": "fatal=PermissionError",
    "limits": 'limits=[Rate(475, "minute"), Concurrency(10)]',
    "item_id": "item_id=lambda item: item.id",
    "dedup": "dedup=10_000",
    "remember": 'remember="run.db"',
    "setup": "setup=httpx.Client",
    "progress": "progress=True",
}


def options() -> str:
    """A section for each option. The docstrings of `concurrent_map` and `Caller` say what it does."""
    parameters = [one for one in inspect.signature(concurrent_map).parameters.values() if one.kind is one.KEYWORD_ONLY]
    of_maps, of_callers = said(concurrent_map), said(Caller)
    *others, last = [f"`{one.name}`" for one in parameters if one.name not in of_callers]
    parts = [HEAD.replace("ABSENT", f"{', '.join(others)} or {last}")]
    for one in parameters:
        about, callers = of_maps[one.name], of_callers.get(one.name)
        texts = [about[0].upper() + about[1:], *([f"In Callers: {callers}"] if callers not in (None, about) else [])]
        kind = str(one.annotation).replace("'", '"').replace("_T", "Item")
        head = f"`{one.name}: {kind} = {shown(one.default)}`"
        about = "\n\n".join(fill(text, 120, break_on_hyphens=False) for text in texts)
        parts.append(f"## {one.name}\n\n{head}\n\n{about}\n\nExample: `{EXAMPLES[one.name]}`\n\n")
    return "".join(parts).rstrip() + "\n"


def said(function: object) -> dict[str, str]:
    """What a docstring says of each option: up to the next one, or an empty line."""
    option = rf"^({'|'.join(EXAMPLES)}): "
    _, *found = re.split(option, inspect.getdoc(function) or "", flags=re.MULTILINE)
    texts = [" ".join(text.partition("\n\n")[0].split()) for text in found[1::2]]
    return dict(zip(found[::2], texts, strict=True))


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
