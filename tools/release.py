"""Refuses a release that is not ready: python tools/release.py TAG. wheels.yml runs it before anything is published.

Prints what is missing, a line each; the exit status is 1 if there is anything.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
URLS = ("Homepage", "Documentation", "Source", "Issues", "Changelog")


def missing(tag: str, version: str, project: dict[str, Any], changelog: str) -> list[str]:
    """What a release of that tag lacks."""
    urls = project.get("urls", {})
    checks = {
        f"tag: {tag} (expected: v{version}, of python/manytail/_version.py)": tag == f"v{version}",
        "pyproject.toml: authors is empty (expected: at least a name)": bool(project.get("authors")),
        **{f"pyproject.toml: urls has no {name} (expected: its address)": bool(urls.get(name)) for name in URLS},
        f"CHANGELOG.md: no dated section of {version} (expected: ## {version} (YYYY-MM-DD))": bool(
            re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE)
        ),
    }
    return [sentence for sentence, holds in checks.items() if not holds]


def main(tag: str) -> int:
    version = re.findall(r'__version__ = "(.*)"', (ROOT / "python/manytail/_version.py").read_text(encoding="utf-8"))[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = missing(tag, version, project, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/release.py TAG")
    sys.exit(main(sys.argv[1]))
