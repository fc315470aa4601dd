"""`python -m manytail doctor`: what is installed here, and whether the structures keep their promises here.

Each examination yields findings; a finding is a line of the table. A finding that is WRONG makes the exit status 1.
What is not installed is not imported. The network is used only if a URL is given.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import importlib.util
import math
import mmap
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import manytail
from manytail import _build, _selfcheck
from manytail._interpreter import patched_by

SECONDS = 10.0

# The packages of the extras, as pip takes them. Not the extras themselves: no index has manytail yet.
PACKAGES = {
    "numpy": "'numpy>=2'",
    "selectors": "'lark>=1.2,<2'",
    "postgres": "'psycopg[binary]>=3.2'",
    "arrow": "'pyarrow>=18'",
    "spark": "'pyspark>=4.0,<5' 'pyarrow>=18' 'pandas>=2.2,<3'",
}
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
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    yield gil(free_threaded, getattr(sys, "_is_gil_enabled", lambda: True)())
    yield threads(patched_by())
    yield uvloop(free_threaded, installed_version("uvloop"))


def threads(patched: str | None) -> Finding:
    if patched is None:
        return Finding("threads", Verdict.OK, "the system's")
    said = f"{patched} has patched them: calls of manytail that wait stop all greenlets of their thread, and may hang"
    return Finding("threads", Verdict.WRONG, said)


def uvloop(free_threaded: bool, version: str | None) -> Finding:
    if version is None:
        return Finding("uvloop", Verdict.NONE, "not installed")
    if free_threaded:
        said = f"{version} is not made for an interpreter without the GIL, which it turns on: use asyncio's own loop"
        return Finding("uvloop", Verdict.NOTE, said)
    return Finding("uvloop", Verdict.OK, version)


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
        absent = Finding(name, Verdict.NONE, f"not installed (pip install {PACKAGES[extra]})")
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
        from manytail.spark._java import (
            OLDEST,
            JavaNotFoundError,
            java_version,
            own_java,
            prepare_environment,
            worker_python,
        )
    except ImportError as error:
        yield Finding("manytail.spark", Verdict.WRONG, f"cannot be imported: {error}")
        return
    environ = dict(os.environ)
    java = own_java(environ)
    version = 0 if java is None else java_version(java)
    if version >= OLDEST:
        yield Finding("java", Verdict.OK, f"{version} at {java}")
    else:
        found = "none" if java is None else f"{java} (version {version})" if version else f"{java}, which does not run"
        try:
            prepare_environment(environ)
        except JavaNotFoundError as error:
            yield Finding("java", Verdict.NOTE, f"{error}; only Spark Connect works without")
        else:
            said = f"a session finds {found}; after manytail.spark.prepare_environment() it uses {own_java(environ)}"
            yield Finding("java", Verdict.NOTE, said)
    yield spark_workers(worker_python(os.environ))


def spark_workers(command: str) -> Finding:
    """Whether the Python of Spark's workers on this machine is like this one, and has manytail."""
    advice = f"set PYSPARK_PYTHON={sys.executable}, or call manytail.spark.prepare_environment() before the session"
    script = "import sys; print('%d.%d' % sys.version_info[:2]); import manytail; print(manytail.__file__)"
    try:
        ran = subprocess.run([*shlex.split(command), "-c", script], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Finding("spark workers", Verdict.NOTE, f"{command} does not run ({error}): {advice}")
    version, *package = ran.stdout.split("\n")[:-1] or ["of no version"]
    if version != f"{sys.version_info[0]}.{sys.version_info[1]}":
        here = f"this is {platform.python_version()}"
        return Finding("spark workers", Verdict.NOTE, f"{command} is Python {version}, and {here}: {advice}")
    if not package:
        return Finding("spark workers", Verdict.NOTE, f"{command} has no manytail: {advice}")
    return Finding("spark workers", Verdict.OK, f"{command} is Python {version} and has manytail")


def database(where: str | None) -> Iterator[Finding]:
    """psycopg, and the database that --url names. It is asked for SELECT 1; SQLite makes an empty file if there is
    none."""
    yield psycopg()
    yield file_system(where)
    if where is None:
        yield Finding("database", Verdict.NONE, "not asked: no --url")
        return
    yield reach(where)


def psycopg() -> Finding:
    """psycopg, and the libpq that it needs."""
    version = installed_version("psycopg")
    if version is None:
        return Finding("psycopg", Verdict.NONE, f"not installed (pip install {PACKAGES['postgres']})")
    try:
        pq = importlib.import_module("psycopg").pq
    except ImportError:
        advice = "install the system's libpq (Debian: libpq5), or pip install 'psycopg[binary]'"
        return Finding("psycopg", Verdict.NOTE, f"{version} finds no libpq: {advice}")
    return Finding("psycopg", Verdict.OK, f"{version}, libpq {pq.version()} ({pq.__impl__})")


def file_system(where: str | None) -> Finding:
    """Whether files of `remember` and Shared can be in the directory of --url, or in the current one: SQLite locks its
    files and maps one into memory."""
    text = where or ""
    named = text.removeprefix("sqlite:///") if text.startswith("sqlite:///") else "" if ":" in text else text
    folder = Path(named or "file").resolve().parent
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".manytail-doctor-") as file:
            file.truncate(mmap.PAGESIZE)
            lock_and_map(file.fileno())
    except OSError as error:
        kind = file_system_type(folder)
        said = f"{folder}{kind} has no place for a file of remember or Shared ({error}): name another directory"
        return Finding("file system", Verdict.NOTE, said)
    return Finding("file system", Verdict.OK, f"{folder}{file_system_type(folder)} can lock and map files")


def lock_and_map(file: int) -> None:
    """Raises an OSError if the file system of an open file cannot do one of both."""
    if os.name == "posix":
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    mmap.mmap(file, mmap.PAGESIZE).close()


def file_system_type(folder: Path) -> str:
    """In parentheses, where the system says it."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    around = [mount for mount in mounts if folder.is_relative_to(mount[0].replace("\\040", " "))]
    return f" ({max(around, key=lambda mount: len(mount[0]))[1]})" if around else ""


def reach(where: str) -> Finding:
    from manytail.mapping.frames import ask_database

    try:
        shown, error = ask_database(where)
    except (ValueError, ImportError) as wrong:
        return Finding("database", Verdict.WRONG, f"--url: {wrong}")
    if error:
        return Finding("database", Verdict.WRONG, f"{shown} does not answer: {error}")
    return Finding("database", Verdict.OK, f"{shown} answers")


def structures(seconds: float) -> Iterator[Finding]:
    """The self-check. `seconds` are shared equally among the structures."""
    if patched_by() is not None:
        yield Finding("structures", Verdict.NONE, "not checked: threads are patched, and a check might never end")
        return
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
        raise argparse.ArgumentTypeError(f"{text} (expected: seconds >= 0)")
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
