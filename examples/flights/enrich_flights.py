"""Adds the weather to a thousand real flights, with many HTTP calls at once inside one Spark task.

    python examples/flights/enrich_flights.py [--out DIR]

A user of manytail writes what is in manytail/demo/enrich.py: `fetch`, one call for one row, and `enrich`, one
`df.transform(map_concurrent, ...)`. Here it is used as in any Spark program; `python -m manytail demo --spark` does
the same with a progress bar, checks and a report.
"""

import argparse
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import functions as sf

from manytail.demo import data
from manytail.demo.enrich import enrich
from manytail.demo.service import Service, serving
from manytail.demo.session import spark_session


def main(out: Path) -> None:
    pq.write_table(data.flights(month=1, rows=1000), out / "flights.parquet")
    with spark_session(out) as spark, serving(Service(seed=13)) as service:
        flights = spark.read.parquet(str(out / "flights.parquet"))

        # Lazy, as every transform. Two outputs read it below, so it is cached: the calls are made once.
        done = flights.transform(enrich, service.url).persist()

        enriched = done.where("_error IS NULL")
        print("Enriched, in schedule order:")
        enriched.select("seq", "time_hour", "carrier", "flight", "origin", "temp", "wind_speed", "attempts").show(8)

        print("Dead letters by reason:")
        dead = done.where("_error IS NOT NULL").groupBy("_error.type")
        dead.agg(sf.count("*").alias("rows"), sf.first("_error.message").alias("one of them")).show(truncate=False)
        print(f"The service counted {service.counts['calls']} calls.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    main(folder)
