"""Plants each mutant of tests/mutants.toml in a copy of the tree, one at a time, and reports which check notices it.

    mutants.py [--fit | --checks tsan] [NAME_PART...]

`make mutants` runs all of them. Three things are failures: a mutant that no check catches, one that is listed as
equivalent and is caught, and one whose text does not stand in the sources, or more than once. Then a check is too weak,
or the list is out of date.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from native import BuildError, NotHere, Tree, relacy

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / "build" / "mutants"
SOURCES = ["include", "pyx", "python/manytail"]
SUFFIXES = {".h", ".pxd", ".pyx", ".py"}
# A lost wake-up shows as a wait of 5 s.
DRIVE = {
    "drive": ["-r", "100", "-d", "5"],
    "drive_entries": ["-r", "100", "-d", "5"],
    "drive_epoch": ["-r", "5", "-d", "60"],
    "drive_pool": ["-r", "50", "-d", "5"],
    "drive_pubsub": ["-r", "300"],
}
SECONDS = 900  # per check; the programs end their own hangs, so a longer run only means that the machine is busy


def listed():
    """The mutants, as dicts: the name, the text `old` that becomes `new`, the checks, and why it is equivalent."""
    groups = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())
    equivalent = groups.pop("equivalent")
    return [
        {"name": name, "old": side(change, 1), "new": side(change, 2), "checks": checks.split(", ")}
        | ({"equivalent": equivalent[name]} if name in equivalent else {})
        for checks, same in groups.items()
        for mutants in same
        for name, change in mutants.items()
    ]


def side(change, number):
    """The text before a change, 1, or after it, 2: `both [-before-]{+after+} both`."""
    return re.sub(r"\[-(.*?)-\]|\{\+(.*?)\+\}", lambda match: match[number] or "", change, flags=re.DOTALL)


def copy_tree():
    """With the extension modules and their objects, so that a mutant of one .pyx compiles one module."""
    shutil.rmtree(COPY, ignore_errors=True)
    built = [str(path.relative_to(ROOT)) for path in (ROOT / "build").glob("inplace*")]
    for folder in [*SOURCES, "tests", "build/cython", *built]:
        if (ROOT / folder).exists():
            shutil.copytree(ROOT / folder, COPY / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, COPY / name)


def places(root, old):
    """The sources of the package that `old` stands in, one for each time."""
    sources = (path for folder in SOURCES for path in (root / folder).rglob("*") if path.suffix in SUFFIXES)
    return [path for path in sources for _ in range(path.read_text().count(old))]


def mutate(mutant):
    """The path of the mutant's file and its original text."""
    (path,) = places(COPY, mutant["old"])
    text = path.read_text()
    path.write_text(text.replace(mutant["old"], mutant["new"]) + cimports(path, text, mutant["new"]))
    return path, text


def cimports(path, text, new):
    """Add what the changed kernel needs to cimport: a weaker operation is often one that it does not use yet."""
    missing = sorted(set(re.findall(r"\bmt_\w+", new)) - set(re.findall(r"\bmt_\w+", text)))
    return f"\nfrom manytail._c cimport {', '.join(missing)}\n" if path.suffix == ".pxd" and missing else ""


def command(check):
    """The program of a check, built from the mutated tree, with its arguments."""
    tree = Tree(COPY)
    if check.startswith("tsan"):
        driver, *scenarios = check.removeprefix("tsan").removeprefix(":").split() or ["drive"]
        return [tree.driver(driver, "tsan"), *DRIVE[driver], *scenarios]
    suite, bound = check.removeprefix("model:").split()
    # -O0: most mutants are caught in a second, and compiling with -O2 takes half a minute.
    return [tree.model(relacy(), optimise="-O0"), "-b", bound, suite]


def fails_tests(arguments):
    """Whether tests fail on the extension modules of the mutated tree. A lost wake-up shows as a wait of 5 s."""
    environ = os.environ | {"PYTHONPATH": str(COPY / "python"), "MANYTAIL_TEST_DEADLINE": "5"}
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    built = subprocess.run(build, cwd=COPY, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)
    if built.returncode:
        raise BuildError(built.stderr)
    test = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(arguments)]
    ran = subprocess.run(test, cwd=COPY, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)
    if ran.returncode > 1:
        raise SystemExit(f"tests:{arguments}: pytest ended with {ran.returncode}\n{ran.stdout}\n{ran.stderr}")
    return ran.returncode != 0          # negative: a signal ended it


def catches(check):
    if check.startswith("tests:"):
        return fails_tests(check.removeprefix("tests:"))
    program = [str(part) for part in command(check)]
    return subprocess.run(program, capture_output=True, timeout=SECONDS, check=False).returncode != 0


def caught_by(mutant, allowed):
    """The first of its checks that notices, or None."""
    path, before = mutate(mutant)
    try:
        return next((check for check in mutant["checks"] if check.startswith(allowed) and catches(check)), None)
    finally:
        path.write_text(before)


def verdict(mutant, check):
    """(good, text)."""
    if "equivalent" in mutant:
        return (
            check is None,
            f"equivalent: {mutant['equivalent']}" if check is None else f"SAID TO BE EQUIVALENT, caught by {check}",
        )
    return check is not None, f"caught by {check}" if check else "SURVIVED"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", default="", help="only checks that begin so")
    parser.add_argument("--fit", action="store_true", help="only look whether each mutant fits the sources")
    parser.add_argument("names", nargs="*", help="only mutants whose name contains one of these")
    options = parser.parse_args()
    mutants = [
        mutant for mutant in listed() if not options.names or any(name in mutant["name"] for name in options.names)
    ]
    for mutant in mutants:
        if len(found := places(ROOT, mutant["old"])) != 1 or mutant["new"] == mutant["old"]:
            parser.error(f"{mutant['name']}: its text stands {len(found)} times in the sources, not once, or stays")
    if options.fit:
        return 0
    copy_tree()
    bad = 0
    for mutant in mutants:
        began = time.monotonic()
        try:
            good, said = verdict(mutant, caught_by(mutant, options.checks))
        except BuildError as error:
            good, said = False, f"DOES NOT COMPILE\n{error}"
        except subprocess.TimeoutExpired:
            good, said = False, f"NO VERDICT after {SECONDS} s"
        bad += not good
        print(f"{time.monotonic() - began:4.0f} s  {mutant['name']}: {said}", flush=True)
    print(f"mutants: {len(mutants)} run, {bad} amiss")
    return int(bad != 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotHere as missing:
        print(missing, file=sys.stderr)
        sys.exit(3)
