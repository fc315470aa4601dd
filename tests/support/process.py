"""Scripts run in an interpreter of their own, with the same package and the same build."""
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import manytail

from .threads import DEADLINE


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
    command = [sys.executable, *options, "-c", script, *arguments]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=timeout, check=False)
    assert ran.returncode == 0, f"exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout
