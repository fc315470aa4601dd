"""Scripts run in an interpreter of their own, with the same package and the same build."""
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import manytail

from .threads import DEADLINE

KILL = 9  # SIGKILL. On Windows os.kill ends a process with it too, as with any number that stands for no key
# The tests run on the new maps (see `new_maps`): so do their scripts.
BEGIN = "import support.new_maps\n" if "support.new_maps" in sys.modules else ""
KILLED_CODE = KILL if sys.platform == "win32" else -KILL


def environment() -> dict[str, str]:
    """Our environment, with the directories of this `manytail` and `support` on the path, and warnings as errors."""
    paths = [str(Path(manytail.__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1])]
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths + ([before] if before else [])),
        "PYTHONFAULTHANDLER": "1",
    }


def run_script(script: str, *options: str, arguments: Sequence[str] = (), timeout: float = 4 * DEADLINE) -> str:
    """What the script printed. A non-zero exit status, or a crash, is an AssertionError with all output."""
    command = [sys.executable, *options, "-c", BEGIN + script, *arguments]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=timeout, check=False)
    assert ran.returncode == 0, f"exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def run_command(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """The ended process, with its output as text. It may have failed."""
    return subprocess.run(command, capture_output=True, text=True, timeout=10 * DEADLINE, check=False, **options)


def start_script(script: str, *arguments: str) -> "subprocess.Popen[str]":
    """It runs on, with pipes."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", BEGIN + script, *arguments], env=environment(), text=True, **pipes)


def begin_together(processes: "list[subprocess.Popen[str]]") -> None:
    """Each has said that it is ready, and waits for a line."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


# The beginning of a script: a line on its standard input acts as Ctrl-C. Windows has no SIGINT from process to process.
INTERRUPTED_BY_A_LINE = """
import sys, threading
from support.threads import ctrl_c
threading.Thread(target=lambda: sys.stdin.readline() and ctrl_c(), daemon=True).start()
"""


def skipped_tests(said: str) -> list[str]:
    """The lines of unittest about tests that it skipped, without those for which Windows lacks fork or SIGALRM."""
    lacks = ("requires working os.fork()", "does not support the alarm signal") if sys.platform == "win32" else ()
    lines = [line for line in said.splitlines() if "... skipped" in line]
    return [line for line in lines if not any(reason in line for reason in lacks)]
