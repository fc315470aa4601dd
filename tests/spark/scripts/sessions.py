"""The sessions of these programs: quiet ones, with this interpreter for drivers and, unless another is set, workers."""

import os
import sys

from pyspark.sql import SparkSession

from manytail.spark._java import prepare_environment

QUIET = {"ui.enabled": "false", "ui.showConsoleProgress": "false", "log.level": "OFF", "executor.memory": "512m"}


def session(master, **settings):
    """settings: by name, with __ in place of a dot."""
    prepare_environment()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master)
    builder.config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
    for name, value in {**QUIET, **settings}.items():
        builder.config(f"spark.{name.replace('__', '.')}", value)
    return builder.getOrCreate()
