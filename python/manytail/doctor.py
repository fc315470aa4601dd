"""`python -m manytail doctor`: what is installed here, and whether the structures keep their promises here.

Each examination yields findings; a finding is a line of the table. A finding that is WRONG makes the exit status 1.
What is not installed is not imported. The network is used only if a URL is given.
"""

from __future__ import annotations

import argparse
import enum
import importlib.util
import math
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import manytail
from manytail import _build, _selfcheck

SECONDS = 10.0

# What users install beside manytail -> the extra that brings it.
OPTIONAL = {
    "numpy": "numpy",
    "lark": "selectors",
    "pyspark": "spark",
    "pyarrow": "arrow",
    "pandas": "spark",
}


class Verdict(enum.StrEnum):
    OK = "ok"
    NOTE = "note"  # works, but is not meant for production
    NONE = "-"  # not installed, and not required
    WRONG = "WRONG"


class Finding(NamedTuple):
    """A line of the table: what was examined, the verdict, and what was found."""

    what: str
    verdict: Verdict
    said: str


def interpreter() -> Iterator[Finding]:
    build = "free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else "with a GIL"
    system = f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}".strip()
    yield Finding(
        "python", Verdict.OK, f"{platform.python_implementation()} {platform.python_version()}, {build}, on {system}"
    )
    yield gil(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), getattr(sys, "_is_gil_enabled", lambda: True)())


def gil(free_threaded: bool, enabled: bool) -> Finding:
    if free_threaded and enabled:
        return Finding(
            "GIL",
            Verdict.NOTE,
            "on, though this interpreter can do without: see PYTHON_GIL, -X gil, and what was imported before",
        )
    return Finding("GIL", Verdict.OK, "on" if enabled else "off")


def build() -> Iterator[Finding]:
    yield Finding("manytail", Verdict.OK, f"{manytail.__version__} from {Path(manytail.__file__).parent}")
    compiled = f"{_build.compiler}, Cython {_build.cython_version}, headers of CPython {_build.headers}"
    yield Finding("compiled by", Verdict.OK, compiled)
    yield switches(_build.delays, _build.sanitizer, _build.assertions, _build.tracing)


def switches(delays: bool, sanitizer: str, assertions: bool, tracing: bool) -> Finding:
    """The switches of setup.py that were set for this build. Each of them slows it down."""
    named = {
        "planted delays": delays,
        f"{sanitizer} sanitizer": sanitizer,
        "assertions, no optimisation": assertions,
        "line tracing": tracing,
    }
    found = [name for name, on in named.items() if on]
    if found:
        return Finding("build flags", Verdict.NOTE, f"{', '.join(found)}: for tests only, slow")
    return Finding("build flags", Verdict.OK, "release: optimised, no delays, no sanitizer, no tracing")


def packages() -> Iterator[Finding]:
    for name, extra in OPTIONAL.items():
        version = installed_version(name)
        absent = Finding(name, Verdict.NONE, f"not installed (pip install 'manytail[{extra}]')")
        yield absent if version is None else Finding(name, Verdict.OK, version)


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def spark() -> Iterator[Finding]:
    """Whether the Spark layer can be imported, and which Java a session would run on."""
    if importlib.util.find_spec("pyspark") is None:
        yield Finding("java", Verdict.NONE, "not looked for: pyspark is not installed")
        return
    try:
        from manytail.spark._java import JavaNotFoundError, java_version, prepare_environment
    except ImportError as error:
        yield Finding("manytail.spark", Verdict.WRONG, f"cannot be imported: {error}")
        return
    environ = dict(os.environ)
    try:
        prepare_environment(environ)
    except JavaNotFoundError as error:
        yield Finding("java", Verdict.NOTE, f"{error}; only Spark Connect works without")
        return
    java = java_in(environ)
    yield Finding("java", Verdict.OK, f"{java_version(java)} at {java}")


def java_in(environ: dict[str, str]) -> Path:
    """The executable that Spark starts in that environment."""
    home = environ.get("JAVA_HOME")
    return (
        Path(home, "bin", "java")
        if home
        else Path(shutil.which("java", path=environ.get("PATH", os.defpath)) or "java")
    )


def database(where: str | None) -> Iterator[Finding]:
    """psycopg, and the database that --url names. It is asked for SELECT 1; SQLite makes an empty file if there is
    none."""
    version = installed_version("psycopg")
    absent = ("psycopg", Verdict.NONE, "not installed (pip install 'manytail[postgres]')")
    yield Finding(*absent) if version is None else Finding("psycopg", Verdict.OK, version)
    if where is None:
        yield Finding("database", Verdict.NONE, "not asked: no --url")
        return
    yield reach(where)


def reach(where: str) -> Finding:
    from manytail.mapping._shared import read
    from manytail.mapping._shared_database import Away, Link, database_of

    try:
        found = database_of(read(where))
    except (ValueError, ImportError) as error:
        return Finding("database", Verdict.WRONG, f"--url: {error}")
    link = Link(found, wait=10)
    try:
        link.run(lambda transaction: transaction.value("SELECT 1"), writes=False)
    except (Away, OSError, ValueError, RuntimeError) as error:
        return Finding("database", Verdict.WRONG, f"{found.shown} does not answer: {error}")
    finally:
        link.drop()
    return Finding("database", Verdict.OK, f"{found.shown} answers")


def structures(seconds: float) -> Iterator[Finding]:
    """The self-check. `seconds` are shared equally among the structures."""
    share = seconds / len(_selfcheck.ROUNDS)
    for name, check in _selfcheck.ROUNDS.items():
        try:
            rounds, items = _selfcheck.repeat(check.play, share)
        except _selfcheck.Broken as broken:
            yield Finding(name, Verdict.WRONG, str(broken))
        else:
            threads = f"{_selfcheck.PRODUCERS} + {_selfcheck.CONSUMERS} threads"
            yield Finding(name, Verdict.OK, f"{check.promise}: {items:,} in {rounds:,} rounds of {threads}")


def examinations(seconds: float, url: str | None) -> dict[str, Callable[[], Iterator[Finding]]]:
    return {
        "Installation": lambda: (finding for examine in (build, interpreter) for finding in examine()),
        "Optional": lambda: (finding for examine in (packages, spark, lambda: database(url)) for finding in examine()),
        f"Self-check, {seconds:g} s": lambda: structures(seconds),
    }


def line(finding: Finding) -> str:
    said = " ".join(finding.said.split())  # errors of databases have several lines
    return f"  {finding.what:<16}{finding.verdict:<7}{said}"


def verdict(findings: Sequence[Finding]) -> str:
    wrong = [finding.what for finding in findings if finding.verdict is Verdict.WRONG]
    notes = [finding.what for finding in findings if finding.verdict is Verdict.NOTE]
    if wrong:
        return f"WRONG: {', '.join(wrong)}"
    return f"All is well, but note: {', '.join(notes)}" if notes else "All is well."


def seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text}: expected 0 or more seconds")
    return value


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m manytail doctor",
        description="Says what this installation consists of, and checks with threads that its structures keep "
        "their promises.",
        epilog="Exit status: 0 all is well, 1 something is wrong, 2 wrong options, 130 stopped by Ctrl-C.",
    )
    made.add_argument(
        "--seconds",
        type=seconds,
        default=SECONDS,
        metavar="N",
        help=f"how long the self-check runs (default: {SECONDS:g})",
    )
    made.add_argument(
        "--url", help="URL of a database as Shared takes it, asked for SELECT 1; without it no network is used"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings one by one, then the verdict. Returns the exit status."""
    given = parser().parse_args(arguments)
    findings: list[Finding] = []
    try:
        for title, examine in examinations(given.seconds, given.url).items():
            print(title, flush=True)
            for finding in examine():
                findings.append(finding)
                print(line(finding), flush=True)
    except KeyboardInterrupt:
        return 130
    print(verdict(findings))
    return 1 if any(finding.verdict is Verdict.WRONG for finding in findings) else 0
