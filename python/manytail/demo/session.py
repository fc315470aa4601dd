"""A Spark session for one run: quiet on the terminal, with its own JVM. It leaves nothing, however the run ends."""

import logging
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from manytail.spark import prepare_environment

SETTINGS = {
    "spark.app.name": "manytail demo",
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # One file of flights is one partition: limits and fairness hold within a task, and the demo shows one task.
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
}


@contextmanager
def spark_session(out: Path) -> Iterator[SparkSession]:
    """A session that logs to out/spark.log. Raises RuntimeError if a job failed, with the last line of the reason."""
    prepare_environment()
    temporary = tempfile.TemporaryDirectory(dir=out.resolve(), prefix=".spark-", ignore_cleanup_errors=True)
    with temporary as folder, (out / "spark.log").open("wb") as log:
        folders = {"spark.local.dir": folder, "spark.sql.warehouse.dir": f"{folder}/warehouse"}
        java = {"spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:-UsePerfData"}
        conf = SparkConf(loadDefaults=False).setAll(list((SETTINGS | folders | java).items()))
        gateway = cast(Any, launch_gateway)(conf, {"stdout": log, "stderr": subprocess.STDOUT})
        try:
            handler = signal.getsignal(signal.SIGINT)
            context = SparkContext(conf=conf, gateway=gateway)
            # A signal to the process group ends the JVM first: the accumulator server must not report that.
            cast(Any, context)._accumulatorServer.handle_error = lambda *of: None
            signal.signal(signal.SIGINT, handler)  # Spark's own handler calls the JVM in the middle of another command
            yield SparkSession(context)
            context.stop()
        except (PySparkException, Py4JJavaError) as error:
            raise RuntimeError(str(error).split("\nJVM stacktrace")[0].strip().split("\n")[-1].strip()) from None
        finally:
            # Send no command: an interrupted one may still wait for its answer. The JVM ends with its standard input.
            if SparkContext._active_spark_context is not None:  # else its accumulator server logs the end of the JVM
                cast(Any, SparkContext._active_spark_context)._accumulatorServer.shutdown()
            # py4j frees Java objects in a thread of its own: it must not report that the JVM is gone.
            logging.getLogger().addFilter(lambda record: record.msg != "Exception while sending command.")
            gateway.proc.stdin.close()
            gateway.proc.wait()
            gateway.shutdown()
            SparkContext._gateway = SparkContext._jvm = None  # otherwise a later session takes them for a live JVM
