"""Packs the archive: both interpreters, without what is not needed, manytail and culsans for each, the C library, and
the scripts. It runs on x86-64 Linux with a shell and tar, whatever its C library: the archive's own loader starts the
interpreters. Needs what `make test` and `make test-freethreaded` have made, and binutils."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 60_000_000  # bytes of an archive
PYTHONS = {"gil": ROOT / ".venv/bin/python", "free": ROOT / ".venv-ft/bin/python"}
SCRIPTS = ["tools/scaling/measure.py", "tools/scaling/curves.py"]
SCRIPTS += ["bench/loops.py", "bench/rivals.py", "bench/threaded.py"]
UNUSED = ["test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data", "site-packages"]
UNUSED += ["__pycache__", "config-3*", "*.a", "_test*", "xx*", "_ctypes_test*", "_tkinter*", "_curses*", "readline*"]
# Their libraries would have to come too, and nothing that is measured imports them.
UNUSED += ["_ssl*", "_hashlib*", "_sqlite3*", "_dbm*", "_gdbm*", "nis*", "_crypt*"]
LOADER = "ld-linux-x86-64.so.2"

START = """#!/bin/sh
# {what}, with the C library of this archive.
here=$(cd "$(dirname "$0")" && pwd)
unset LD_PRELOAD LD_LIBRARY_PATH PYTHONSTARTUP PYTHONOPTIMIZE
export PYTHONHOME="$here" PYTHONPATH="$here/packages" {environment}
exec "$here/../libc/{loader}" --inhibit-cache --library-path "$here/../libc:$here/lib" "$here/bin/python" "$@"
"""
RUN = """#!/bin/sh
# Measures how manytail and its rivals scale on this machine: ./run RESULT.json [--seconds=420]
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/gil/python" "$here/scripts/measure.py" "$@" "gil=$here/gil/python" "free=$here/free/python"
"""


NAME = r"python3\.\d+t|python3\.11"
SUFFIX = "sysconfig.get_config_var('EXT_SUFFIX')"
SAID = f"import os, sys, sysconfig; print(sys.base_prefix, os.path.dirname(os.__file__), {SUFFIX})"


def output(*command: str | Path) -> str:
    return subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def executable(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def build(python: Path) -> None:
    """Build manytail in the tree as a release has it. Compiles nothing if it was built so."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MANYTAIL_")}
    subprocess.run([python, "setup.py", "-q", "build_ext", "--inplace"], cwd=ROOT, env=environ, check=True)


def pack_python(name: str, python: Path, into: Path) -> None:
    """An interpreter, its standard library, manytail and culsans."""
    prefix, library, suffix = output(python, "-c", SAID).split()
    (binary,) = (path for path in Path(prefix, "bin").iterdir() if re.fullmatch(NAME, path.name))
    (into / "bin").mkdir(parents=True)
    shutil.copy2(binary, into / "bin" / "python")
    shutil.copytree(library, into / "lib" / Path(library).name, ignore=shutil.ignore_patterns(*UNUSED))
    for shared in Path(prefix, "lib").glob("libpython3.*.so.*"):
        shutil.copy2(shared, into / "lib")
    packages = into / "packages"
    shutil.copytree(ROOT / "python/manytail", packages / "manytail", ignore=other_builds(suffix))
    pip = [ROOT / ".venv/bin/python", "-m", "pip", "--disable-pip-version-check", "-q", "--python", python]
    output(*pip, "install", "--target", packages, "--only-binary=:all:", "--no-compile", "culsans>=0.11")
    free = name == "free"
    environment = "PYTHON_GIL=0" if free else ""
    start = {"what": "A CPython without the GIL" if free else "A CPython with the GIL", "environment": environment}
    executable(into / "python", START.format(loader=LOADER, **start))


def other_builds(suffix: str):
    """What copytree leaves out of a package: bytecode, the demo, and modules for other interpreters."""

    def ignored(folder: str, names: list[str]) -> list[str]:
        return [
            name for name in names
            if name in ("__pycache__", "demo", "spark") or (name.endswith(".so") and not name.endswith(suffix))
        ]  # fmt: skip

    return ignored


def binaries(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in found if path.open("rb").read(4) == b"\x7fELF"]


def pack_libraries(folder: Path) -> None:
    """The shared libraries that any binary here needs, the C library and its loader above all."""
    into = folder / "libc"
    into.mkdir()
    own = {path.name for path in binaries(folder)}
    libraries = {Path(found) for one in binaries(folder) for found in re.findall(r"(/\S+) \(0x", output("ldd", one))}
    libraries.add(Path(output("gcc", "-print-file-name=libgcc_s.so.1")))  # pthread_exit loads it by name
    for library in libraries:
        if library.name not in own:
            shutil.copy2(library.resolve(), into / library.name)
    for binary in binaries(folder):
        if not binary.name.startswith("ld-linux"):
            binary.chmod(0o755)
            subprocess.run(["strip", "--strip-unneeded", binary], check=True)


def made() -> dict[str, str]:
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "commit": output("git", "-C", ROOT, "describe", "--always", "--dirty=+", "--abbrev=12"),
        "libc": output("ldd", "--version").splitlines()[0],
    }


def pack(archive: Path) -> None:
    folder = ROOT / "build/scaling/manytail-scaling"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "scripts").mkdir(parents=True)
    for name, python in PYTHONS.items():
        print(f"--> packing {name}: {python}", file=sys.stderr, flush=True)
        build(python)
        pack_python(name, python, folder / name)
    for script in SCRIPTS:
        shutil.copy2(ROOT / script, folder / "scripts")
    (folder / "scripts" / "made.json").write_text(json.dumps(made()), encoding="utf-8")
    pack_libraries(folder)
    executable(folder / "run", RUN)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    size = archive.stat().st_size
    if size > MOST:
        raise SystemExit(f"{archive}: {size:,} bytes (expected: at most {MOST:,})")
    print(f"{archive}: {size:,} bytes. On the machine: tar xzf {archive.name} && {folder.name}/run RESULT.json")
