"""Windows x86-64: CPython 3.14 under wine, modules made by mingw's gcc. Cheap: imports, doctor,
and of the maps what takes no minutes.

The tests of core run in one process for each file. What wine 8 lacks, and no Windows does: numpy's module needs a
function of the C library (crealf), trio an option of sockets (SIO_BASE_HANDLE); _wmi, which the platform module asks
first, does not return; CopyFile2, which shutil.copy2 calls, ends the process. Of what it has, asking for the time of a
file takes so long that asyncio's debug mode, which asks for all files at each step, does not get anywhere."""

from pathlib import Path

import common

WINE = "/usr/lib/wine/wine64"
FILES = sorted(path for path in (common.ROOT / "tests/core").rglob("test_*.py") if "trio" not in path.name)
USUAL = ["workplace", "stdlib_queue", "executor", "mapping", "broker", "shared", "contract", "doctor", "wakeups"]
MAPS = ["scheduler", "options", "policies", "batches", "limits", "concurrent_map"]
MAPS = [f"tests/mapping/test_{name}.py" for name in MAPS]


def environment() -> dict[str, str]:
    """What wine is started with."""
    prefix = common.CACHE / "wine"
    settings = {"WINEPREFIX": str(prefix), "WINEDLLOVERRIDES": "mscoree,mshtml=", "WINEDEBUG": "-all"}

    def make(folder: Path) -> None:
        common.run("wineboot", "-i", check=False, **settings)
        common.run(WINE, "winecfg", "/v", "win10", check=False, **settings)

    common.once("wine", make)
    return settings


def at(path: Path) -> str:
    """The name of a file of this machine in wine."""
    return "Z:" + str(path).replace("/", "\\")


def windows() -> None:
    name = "windows"
    common.need(wine64=WINE, wine="wineboot", gcc_mingw_w64_x86_64="x86_64-w64-mingw32-gcc")
    base = common.cpython("windows-x86_64")
    (base / "lib/_wmi.pyd").unlink(missing_ok=True)
    options = ["--include-dirs", base / "include", "--library-dirs", base / "libs", "--libraries", "python314"]
    compiler = "x86_64-w64-mingw32-gcc"
    made = common.wheel(name, "win_amd64", ".cp314-win_amd64.pyd", compiler, "-static-libgcc", options)
    site = common.unpacked(made)
    path = [site, common.packages("windows", ["win_amd64"], "colorama", "tzdata", "cffi", "psycopg[binary]")]
    environ = environment() | {"PYTHONPATH": ";".join(map(at, path)), "PYTHONUTF8": "1"}
    python = [WINE, base / "python.exe"]
    every = [*common.folders(USUAL), *([file.relative_to(common.ROOT).as_posix()] for file in FILES)]
    lacking = ["-k", "not trio and not debug and not importing_asyncio"]  # the last one falls back to trio
    common.tried(name, python, [MAPS] if common.CHEAP else every, lacking, **environ)


common.main(windows)
