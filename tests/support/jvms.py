"""The JVMs of a test run start in half the processor time: they have no second compiler, and they map the classes that
an earlier one has loaded and verified (Java's class-data sharing, CDS).

The first run in a checkout makes the archive of those classes in the background. JVMs that start before it is there, or
whose Java or class path is another one, load their classes as usual.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A JVM that cannot use the archive says so on its standard output, unless only errors are logged.
SHARED = f"{SHORT_LIVED} -XX:SharedArchiveFile={{}} -Xlog:disable -Xlog:all=error:stderr"

# Loads what most of our jobs load. The JVM writes the archive when it ends, and the archive gets its name after that.
MAKE = """
import os, sys, tempfile
from manytail.spark._java import prepare_environment

prepare_environment()
archive = sys.argv[1]
part = archive + ".part"
os.environ["SPARK_SUBMIT_OPTS"] += f" -XX:ArchiveClassesAtExit={part} -Xlog:disable -Xlog:all=error:stderr"
from pyspark import SparkContext
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
with tempfile.TemporaryDirectory() as folder:
    rows = spark.range(100).selectExpr("id", "id % 3 AS key", "array(struct(string(id) AS name)) AS names")
    rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(f"{folder}/rows")
    spark.read.parquet(f"{folder}/rows").groupBy("key").count().orderBy("key").collect()
gateway = SparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
if gateway.proc.wait() == 0:
    os.replace(part, archive)
"""


class SharedClasses:
    """The archive of a checkout, and the process that makes it."""

    def __init__(self, folder: Path) -> None:
        self.archive = folder / "classes.jsa"
        self.maker: subprocess.Popen[bytes] | None = None
        # A worker of pytest-xdist inherits what the process that started it has set.
        self.ours = all(os.environ.get(name, SHORT_LIVED).startswith(SHORT_LIVED) for name in VARIABLES)
        self.use()

    def use(self) -> None:
        """Set the variables for the JVMs that this process and its children start, if the user has not."""
        if self.ours:
            options = SHARED.format(self.archive) if self.archive.exists() else SHORT_LIVED
            os.environ.update(dict.fromkeys(VARIABLES, options))

    def make(self) -> None:
        """Begin to make the archive, unless there is one."""
        if self.ours and not self.archive.exists():
            self.archive.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-c", MAKE, str(self.archive)]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            self.maker = subprocess.Popen(command, start_new_session=True, **quiet)

    def end(self) -> None:
        """Stop making it: a run that ends earlier does not wait."""
        if self.maker is not None and self.maker.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.maker.pid, signal.SIGKILL)
            self.maker.wait()
