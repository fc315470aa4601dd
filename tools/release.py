"""Refuses a release that is not ready, and writes its notes. wheels.yml runs it before anything is published.

    python tools/release.py TAG [DIST]       prints what is missing, a line each; the exit status is 1 if anything is.
                                             DIST: a folder that must hold the sdist and every wheel
    python tools/release.py --notes FILE     writes the version's section of the changelog
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WHEELS = 56  # of a release: 7 interpreters on 8 platforms, as [tool.cibuildwheel] has them
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


def missing_files(version: str, dist: Path) -> list[str]:
    """What a folder lacks of a release's files."""
    wheels = len([*dist.glob(f"manytail-{version}-*.whl")])
    checks = {
        f"{dist}: no manytail-{version}.tar.gz": (dist / f"manytail-{version}.tar.gz").is_file(),
        f"{dist}: {wheels} wheels of {version} (expected: {WHEELS})": wheels == WHEELS,
    }
    return [sentence for sentence, holds in checks.items() if not holds]


def notes(version: str, changelog: str) -> str:
    """The section of a version, without its heading."""
    found = re.search(rf"^## {re.escape(version)} [^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise SystemExit(f"CHANGELOG.md: no section of {version}, or an empty one")
    return found[1].strip() + "\n"


def main(arguments: list[str]) -> int:
    version = re.findall(r'__version__ = "(.*)"', (ROOT / "python/manytail/_version.py").read_text(encoding="utf-8"))[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    match arguments:
        case ["--notes", file]:
            Path(file).write_text(notes(version, changelog), encoding="utf-8")
            return 0
        case [tag, *dist] if len(dist) < 2:
            found = missing(tag, version, project, changelog)
            found += [sentence for folder in dist for sentence in missing_files(version, Path(folder))]
            print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
            return int(bool(found))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
