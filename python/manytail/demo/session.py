"""A Spark of one run: quiet on the terminal, its own JVM, and nothing left of it afterwards, whether the run ended, failed or was interrupted."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from manytail.spark._java import prepare_environment

STOP_WITHIN = 30.0

# Nothing of the machine's own Spark settings is wanted. One file of flights must be one partition: limits and turns hold within one task, and
# one task is what the run shows. Time is UTC, as in the data.
SETTINGS = {
    "spark.master": "local[2]",
    "spark.app.name": "manytail demo",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.catalogImplementation": "in-memory",
}


class SparkFailed(RuntimeError):
    """A Spark job has failed; the message is the last line of what it failed with."""


@contextmanager
def spark_session(scratch: Path, log: Path) -> Iterator[SparkSession]:
    """A session whose temporary files go to `scratch` and whose log goes to `log`. At the end the JVM and its Python workers are gone."""
    prepare_environment()
    settings = SETTINGS | {
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData",
    }
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with log.open("wb") as output:
        gateway = launch_gateway(conf, popen_kwargs={"stdout": output, "stderr": subprocess.STDOUT})  # type: ignore[no-untyped-call]
        try:
            context = SparkContext(conf=conf, gateway=gateway)
            context.setLogLevel("WARN")
            spark = SparkSession(context)
            try:
                yield spark
            except (PySparkException, Py4JJavaError) as error:
                # Said now: an exception of the JVM cannot be read once the JVM is gone.
                raise SparkFailed(_reason(error)) from None
            finally:
                spark.stop()
        finally:
            _end(gateway)


def _reason(error: Exception) -> str:
    """What happened, in one line: of a failed Python worker the last one of its traceback."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString()).splitlines()[0]
    lines = [line for line in str(error).split("\nJVM stacktrace")[0].splitlines() if line.strip()]
    return lines[-1].strip()


def _end(gateway: Any) -> None:
    """Ends the JVM: it lives as long as its standard input is open. Its workers end with it."""
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(STOP_WITHIN)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    # A later session in this process would otherwise take them for a live JVM.
    SparkContext._gateway = SparkContext._jvm = None
