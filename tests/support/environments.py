"""Virtual environments and commands away from this checkout, for tests of what a user installs."""

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

BUILD_REQUIREMENTS = ["setuptools>=77", "cython>=3.3,<3.4"]


def run(*command: str | Path, cwd: Path, **extra_environ: str) -> str:
    """Standard output of a command that must succeed. The command sees nothing of this checkout."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MANYTAIL_"))
    } | extra_environ
    ran = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=900, check=False)
    assert ran.returncode == 0, f"{command} in {cwd}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment without pip: this interpreter's pip installs into it."""

    root: Path

    @classmethod
    def create(cls, root: Path) -> "Environment":
        venv.create(root, with_pip=False, symlinks=os.name != "nt")
        return cls(root)

    @property
    def interpreter(self) -> Path:
        return self.root / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def install(self, *arguments: str | Path, **extra_environ: str) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.interpreter]
        run(*pip, "install", "-q", *arguments, cwd=self.root, **extra_environ)

    def python(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        return run(self.interpreter, *arguments, cwd=cwd or self.root)
