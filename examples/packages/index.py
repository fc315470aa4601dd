"""The input: the package index as apt has it on this machine, one row per package, and the price of asking about it.

`apt-cache dumpavail` prints the version of each package that apt would install, whatever the lists are compressed with.
A file with such records, an uncompressed `Packages` of any Debian mirror, is read as well.
"""

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

NAME = re.compile(r"[^\s(:\[<]+")
ALTERNATIVES = pa.list_(pa.list_(pa.string()))
SCHEMA = pa.schema(
    [("package", pa.string()), ("version", pa.string()), ("section", pa.string()), ("size", pa.int64()),
     ("depends", ALTERNATIVES), ("provides", pa.list_(pa.string())), ("price", pa.int64())]
)  # fmt: skip
MISSING = "Run it on Debian or Ubuntu after `apt-get update`, or give an uncompressed Packages file with --index FILE"


class NoIndex(Exception):
    """There is no package index to read; the message says what is missing and how to get it."""


def read(file: Path | None = None) -> pa.Table:
    """Every package of the index, ordered by name."""
    if file is not None:
        if not file.is_file():
            raise NoIndex(f"{file} is no file. {MISSING}.")
        with file.open(encoding="utf-8") as lines:
            return _table(lines, str(file))
    if shutil.which("apt-cache") is None:
        raise NoIndex(f"This machine has no apt-cache. {MISSING}.")
    with subprocess.Popen(["apt-cache", "dumpavail"], stdout=subprocess.PIPE, text=True, encoding="utf-8") as apt:
        assert apt.stdout is not None
        table = _table(apt.stdout, "apt-cache dumpavail")
    if apt.returncode:
        raise NoIndex(f"apt-cache dumpavail ended with status {apt.returncode}. {MISSING}.")
    return table


def _table(lines: Iterable[str], source: str) -> pa.Table:
    rows = {row["package"]: row for row in map(_row, _records(lines)) if row is not None}
    if not rows:
        raise NoIndex(f"{source} has no package that can be downloaded. {MISSING}.")
    return pa.Table.from_pylist([rows[name] for name in sorted(rows)], schema=SCHEMA)


def _records(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """The paragraphs of a control file. Continuation lines are left out: no field that is used here has any."""
    record: dict[str, str] = {}
    for line in lines:
        if not line.strip():
            yield record
            record = {}
        elif not line[0].isspace():
            name, _, value = line.partition(":")
            record[name] = value.strip()
    yield record


def _row(record: dict[str, str]) -> dict[str, Any] | None:
    if "Filename" not in record:  # a package that is installed here, and that no mirror has
        return None
    wanted = f"{record.get('Pre-Depends', '')}, {record.get('Depends', '')}"
    depends = [[_name(one) for one in group.split("|")] for group in wanted.split(",") if group.strip()]
    provides = [_name(one) for one in record.get("Provides", "").split(",") if one.strip()]
    return {
        "package": record["Package"], "version": record["Version"], "section": record.get("Section", "unknown"),
        "size": int(record["Size"]), "depends": depends, "provides": provides, "price": 1 + len(depends),
    }  # fmt: skip


def _name(relation: str) -> str:
    """libc6 of `libc6:any (>= 2.34) [amd64]`. Which version is wanted makes no difference here."""
    found = NAME.match(relation.strip())
    return found.group() if found else relation.strip()
