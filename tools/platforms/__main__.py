"""Runs the scripts of this folder, two at a time: `python tools/platforms [--cheap] [--build | --built] [NAME...]`.

The cheap part: core's essentials, maps and workplace on CPython 3.14; imports, the doctor and most maps on Windows; one
module for the others. Prints what each ran, and a line for each at the end. A platform that cannot be had here is no
failure, but it is said."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NAMES = ["linux_314", "windows", "linux_315", "arm64", "compiled"]
CHEAP = ["linux_314", "windows", "compiled"]
RUN = ["linux_314", "windows"]  # of the cheap part, not compiled only
STATUS = {0: "passed", 3: "SKIPPED"}


def run(name: str, options: list[str]) -> tuple[str, int, float]:
    """Run a script; its output is printed when it has ended."""
    began = time.monotonic()
    command = [sys.executable, Path(__file__).with_name(f"{name}.py"), *options]
    piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ran = subprocess.run(command, check=False, **piped)
    print(ran.stdout.decode(errors="replace"), end="", flush=True)
    return name, ran.returncode, time.monotonic() - began


def main(arguments: list[str]) -> int:
    options = [argument for argument in arguments if argument.startswith("--")]
    usual = NAMES if "--cheap" not in options else RUN if "--built" in options else CHEAP
    names = [argument for argument in arguments if argument not in options] or usual
    if unknown := [name for name in names if name not in NAMES]:
        print(f"platforms: {' '.join(unknown)}: expected some of {' '.join(NAMES)}", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(2) as two:
        ended = list(two.map(lambda name: run(name, options), names))
    for name, status, seconds in ended:
        print(f"{name}: {STATUS.get(status, 'FAILED')}, {seconds:.0f} s")
    return int(any(status not in STATUS for _, status, _ in ended))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
