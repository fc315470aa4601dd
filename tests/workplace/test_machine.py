"""What systems do each in their own way: the event loop that asyncio makes, processes that are spawned, paths, a file
of SQLite that two processes write, a terminal."""

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from support.maps import collect
from support.process import environment, run_script
from support.threads import DEADLINE, Threads

import manytail
from manytail import MultiQueue, Shared, aconcurrent_map, concurrent_map

pytestmark = pytest.mark.thread_unsafe(reason="processes and terminals of their own")

SPAWN = multiprocessing.get_context("spawn")
UNUSUAL = "two words, größer ✓ 数据"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One with spaces and other letters."""
    made = tmp_path / UNUSUAL
    made.mkdir()
    return made


# ------------------------------------------------------------------------------------------------------ asyncio's loop
def test_the_loop_of_asyncio_run_serves_maps_and_queues_beside_a_process() -> None:
    """A program that a coroutine starts needs asyncio's own kind of loop on Windows; it is the default there."""
    queue: Any = MultiQueue()
    lane = queue.add("a")

    async def program(number: int) -> int:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", f"exit({number})")
        return await process.wait()

    async def main() -> None:
        if sys.platform == "win32":
            assert isinstance(asyncio.get_running_loop(), asyncio.ProactorEventLoop)
        with Threads() as threads:
            waiting = asyncio.create_task(queue.aget())
            assert await collect(aconcurrent_map(program, [1, 2, 3], workers=3)) == [1, 2, 3]
            threads.start(lane.put, "item")
            assert await waiting == "item"

    asyncio.run(main())


# ----------------------------------------------------------------------------------------------- paths and processes
def paid(item: int) -> int:
    calls = Path(os.environ["CALLS"])
    with calls.open("a", encoding="utf-8") as file:
        file.write(f"{item}\n")
    return item * item


def pay(path: str, numbers: range, calls: str) -> list[int]:
    os.environ["CALLS"] = calls
    return list(concurrent_map(paid, numbers, workers=4, remember=Shared(path, "paid")))


def test_two_spawned_processes_and_this_one_pay_once_into_one_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside one another they wait for the lock of the file; who comes later finds what was paid."""
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.setenv("CALLS", "")
    path, calls = str(folder / "results.db"), folder / "calls.txt"
    squares = [number * number for number in range(40)]
    with SPAWN.Pool(2) as pool:
        halves = [(path, range(start, start + 20), str(calls)) for start in (0, 20)]
        assert list(chain(*pool.starmap(pay, halves))) == squares
    assert pay(f"sqlite:///{path}", range(40), str(calls)) == squares
    assert sorted(map(int, calls.read_text(encoding="utf-8").split())) == list(range(40))
    assert [file.name for file in folder.iterdir() if file.suffix == ".db"] == ["results.db"]


def test_the_file_of_a_closed_database_can_be_moved(folder: Path) -> None:
    """Windows lets go of a file only when it is closed."""
    run_script("""
import sys, manytail
manytail.Shared(sys.argv[1], "a").reset()
manytail.Shared(sys.argv[1], "a").remembered()
import gc, os
gc.collect()
os.rename(sys.argv[1], sys.argv[1] + ".moved")
""", arguments=[str(folder / "results.db")])  # fmt: skip


def test_it_runs_from_a_folder_with_spaces_and_other_letters(folder: Path) -> None:
    unwanted = shutil.ignore_patterns("__pycache__")
    copy = shutil.copyfile  # wine 8 does not have what copy2 calls
    shutil.copytree(manytail.__path__[0], folder / "manytail", ignore=unwanted, copy_function=copy)
    command = [sys.executable, "-m", "manytail", "doctor", "--seconds", "0"]
    environ = environment() | {"PYTHONPATH": str(folder), "PYTHONUTF8": "1"}
    ran = subprocess.run(command, cwd=folder, env=environ, capture_output=True, encoding="utf-8", timeout=DEADLINE * 4)
    assert ran.returncode == 0, ran.stderr
    assert UNUSUAL in ran.stdout
    assert "All is well" in ran.stdout


# ------------------------------------------------------------------------------------------------------------ terminals
def test_output_that_is_no_terminal_gets_no_line() -> None:
    script = "import manytail; list(manytail.concurrent_map(abs, range(3), progress=True))"
    command = [sys.executable, "-c", f"import sys; sys.modules['tqdm.auto'] = None; {script}"]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=DEADLINE * 4)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_a_terminal_gets_a_line_that_is_rewritten() -> None:
    """A real one: a pseudo-terminal, or on Windows a console without a window, which the process reads."""
    script = "import manytail, sys; sys.modules['tqdm.auto'] = None; "
    script += "list(manytail.concurrent_map(abs, range(3), progress=True))"
    shown = in_a_console(script) if sys.platform == "win32" else in_a_terminal(script)
    assert "3 done, 0 failed, 0 in flight" in shown


def in_a_terminal(script: str) -> str:
    ours, its = os.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        command = [sys.executable, "-c", script]
        with open(its, "wb", buffering=0) as stderr:
            process = subprocess.Popen(command, stderr=stderr, env=environment() | {"TERM": "xterm"})
        shown = b""
        with contextlib.suppress(OSError):  # Linux raises at the end
            while part := terminal.read(4096):
                shown += part
        assert process.wait(DEADLINE) == 0
    return shown.decode()


READ_CONSOLE = """
import ctypes
from ctypes import wintypes
kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
kernel32.CreateFileW.restype = wintypes.HANDLE
console = kernel32.CreateFileW("CONOUT$", 0xC0000000, 3, None, 3, 0, None)
text, read = ctypes.create_unicode_buffer(4000), wintypes.DWORD()
kernel32.ReadConsoleOutputCharacterW(
    wintypes.HANDLE(console), text, 4000, wintypes._COORD(0, 0), ctypes.byref(read)
)
open(sys.argv[1], "w", encoding="utf-8").write(text[: read.value])
"""


def in_a_console(script: str) -> str:
    """What the process's own console shows at its end."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        shown = Path(folder, "shown.txt")
        own = f"import sys; sys.stderr = open('CONOUT$', 'w'); {script}\n{READ_CONSOLE}"
        command = [sys.executable, "-c", own, str(shown)]
        own_console: int = subprocess.CREATE_NO_WINDOW  # type: ignore[attr-defined]
        subprocess.run(command, env=environment(), creationflags=own_console, timeout=DEADLINE * 4, check=True)
        return shown.read_text(encoding="utf-8")
