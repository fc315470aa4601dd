"""A slow task that Spark runs twice at once, on a cluster of two nodes; test_elsewhere.py runs it.

The argument is a directory for notes. Spark never runs the second attempt on the host of the first, so the workers of
this standalone cluster have two addresses of the loopback device. The first attempt hangs until Spark kills it: the
second one's rows are the output.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pyspark
from pyspark import TaskContext
from pyspark.sql import functions as F
from sessions import prepare_environment, session

from manytail.spark import concurrent_udf, fan_out, map_concurrent

NOTES = Path(sys.argv[1])
DEADLINE = 300.0
IDS = list(range(400))
SPECULATION = {"interval": "100ms", "quantile": "0.5", "multiplier": "1.1", "minTaskRuntime": "100ms"}


def until(predicate):
    end = time.monotonic() + DEADLINE
    while not predicate():
        assert time.monotonic() < end, predicate
        time.sleep(0.05)


def is_open(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def start(stack, *command):
    """A daemon of Spark that ends with this script."""
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    process = subprocess.Popen(
        [str(spark_class), *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stack.callback(process.wait)
    stack.callback(process.kill)


def hang_once(number, of):
    """In the first attempt of the last task."""
    if number == IDS[-1]:
        attempt = TaskContext.get().attemptNumber()
        with (NOTES / of).open("a") as file:
            file.write(f"{attempt} {os.getpid()}\n")
        if attempt == 0:
            threading.Event().wait()
    return 2 * number


def check(of):
    """Both attempts made the call, and the process of the first is gone."""
    until(lambda: len((NOTES / of).read_text().splitlines()) == 2)
    calls = dict(line.split() for line in (NOTES / of).read_text().splitlines())
    assert set(calls) == {"0", "1"}, calls
    until(lambda: not is_running(int(calls["0"])))


def run(spark):
    source = spark.range(0, len(IDS), 1, 4)
    mapped = source.transform(map_concurrent, lambda row: hang_once(row.id, "map"), "twice long")
    assert [tuple(row) for row in mapped.collect()] == [(number, 2 * number) for number in IDS]
    check("map")
    if hasattr(F, "arrow_udf"):  # concurrent_udf needs PySpark 4.1
        doubled = concurrent_udf(lambda number: hang_once(number, "udf"), "long")
        assert [row.twice for row in source.select(doubled("id").alias("twice")).collect()] == [2 * n for n in IDS]
        check("udf")

    def total(batches):
        return sum(hang_once(number, "fan_out") for batch in batches for number in batch["id"].to_pylist())

    def count(batches):
        return sum(batch.num_rows for batch in batches)

    done = fan_out(source, {"total": total, "count": count}, schema="n long").collect()
    assert [(row.partition, row.sink) for row in done] == [(n, sink) for n in range(4) for sink in ("total", "count")]
    assert sum(row.result.n for row in done if row.sink == "total") == 2 * sum(IDS)
    assert sum(row.result.n for row in done if row.sink == "count") == len(IDS)
    check("fan_out")


prepare_environment()
with ExitStack() as stack:
    port = free_port()
    start(
        stack, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"
    )
    until(lambda: is_open(port))
    for host in ("127.0.0.1", "127.0.0.2"):
        options = ["--host", host, "--cores", "1", "--memory", "700m", "--webui-port", "0"]
        start(stack, "org.apache.spark.deploy.worker.Worker", *options, f"spark://127.0.0.1:{port}")
    speculates = {f"speculation__{name}": value for name, value in SPECULATION.items()}
    spark = session(f"spark://127.0.0.1:{port}", driver__host="127.0.0.1", speculation="true", **speculates)
    run(spark)
    spark.stop()
print("speculation: ok")
