"""Makes the text of docs/design/from-designs.md from from-designs.toml beside it. tools/docs_pages.py writes it."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs" / "design" / "from-designs.toml"
MEANINGS = {
    "same": "the same",
    "differs": "differs",
    "missing": "missing",
    "outside": "no counterpart",
}

HEAD = """\
# From the published designs to this code

Five published documents are behind the structures here. This page goes through them claim by claim: what each one
says, in our own words; where that is in the code; whether it is the same here, and if not, why, with the figure that
decided it where there is one; and the test that shows it. Names in backticks after a figure are rows of the
[benchmark](record.md); what was measured apart is in [measurements](measurements.md).

"No counterpart" means that the claim is about something that a process without a network, or a language without a
tracing collector of that kind, does not have.

"""


def documents() -> list[dict[str, Any]]:
    """Each with its sections, these with their claims, which have numbers: from 1 in each document."""
    found: list[dict[str, Any]] = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["document"]
    for document in found:
        for number, claim in enumerate(claims(document), start=1):
            claim["number"] = number
    return found


def claims(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for section in document["section"]:
        yield from section["claim"]


def page() -> str:
    all_of_them = documents()
    parts = [HEAD, summary(all_of_them)]
    for document in all_of_them:
        numbers = {claim["name"]: str(claim["number"]) for claim in claims(document) if "name" in claim}
        parts.append(f"## {document['title']}\n\n{document['about']}\n\n")
        for section in document["section"]:
            parts.append(f"### {section['title']}\n\n" if section["title"] else "")
            parts.append("| | sentence | it says | here | where, and why | shown by |\n|---|---|---|---|---|---|\n")
            parts += [row(claim, numbers) for claim in section["claim"]]
            parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def summary(found: list[dict[str, Any]]) -> str:
    lines = ["| document | claims | " + " | ".join(MEANINGS.values()) + " |", "|---" * (2 + len(MEANINGS)) + "|"]
    for document in found:
        counts = Counter(claim["is"] for claim in claims(document))
        cells = [document["title"], str(counts.total()), *(str(counts[kind]) for kind in MEANINGS)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n"


def row(claim: dict[str, Any], numbers: dict[str, str]) -> str:
    sentences = ", ".join(map(str, claim["sentences"]))
    realised = " ".join(filter(None, [by_file(claim.get("where", [])), claim.get("why", "").format_map(numbers)]))
    tests = by_file(claim.get("tests", []))
    cells = [claim["number"], sentences, claim["says"], MEANINGS[claim["is"]], realised, tests]
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"


def by_file(places: list[str]) -> str:
    """`file.py`: `one`, `other`. Of what stands in the same file, its name once."""
    pairs = [place.partition(": ")[::2] for place in places]
    texts = []
    for path, group in groupby(pairs, key=lambda pair: pair[0]):
        names = ", ".join(f"`{name}`" for _, name in group if name)
        texts.append(f"{Path(path).name}: {names}" if names else Path(path).name)
    return "; ".join(texts) + ("." if texts else "")
