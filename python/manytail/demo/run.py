"""The steps of a run, from the data to the report, and what the terminal shows of them."""

import argparse
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table

from . import data, report
from .compare import pool_per_batch
from .enrich import enrich
from .service import Service, serving
from .session import spark_session
from .tally import Tally

RESULTS = ("flights.parquet", "calls", "enriched", "dead_letters", "compare", "report.html")
console = Console(highlight=False, soft_wrap=True)


def perform(options: argparse.Namespace) -> list[str]:
    """Run the demo. Returns what does not add up, one sentence each. A run that is cut short leaves no results."""
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as unless_done:
        unless_done.callback(clear, out)
        clear(out)
        which = "Flights" if options.rows is None else f"The first {options.rows:,} flights"
        title = f"{which} from New York in 2013{f'-{options.month:02}' if options.month else ''}, each with its weather"
        step("manytail", title)
        flights = data.flights(options.month, options.rows)
        pq.write_table(flights, out / "flights.parquet")
        step("input", f"{len(flights):,} flights; weather by HTTP: half of the calls 8 ms or less, 1 % 300 ms or more")
        step("Spark", f"starting; its log is {out / 'spark.log'}")
        with spark_session(out) as spark:
            source = spark.read.parquet(str(out / "flights.parquet"))
            ways = {"map_concurrent": _do(source, partial(enrich, per_key=options.per_key), out, options)}
            if options.compare:
                ways["pool per batch"] = _do(source, pool_per_batch, out / "compare", options)
        (out / "report.html").write_text(report.page(title, options, ways), encoding="utf-8")
        unless_done.pop_all()
    figures = [report.figures(way) for way in ways.values()]
    table = Table("", *(Column(name, justify="right") for name in ways), box=SIMPLE_HEAD)
    for name in figures[0]:
        table.add_row(name, *(figure[name] for figure in figures))
    console.print(table)
    step("results", f"{out / 'enriched'}, {out / 'dead_letters'}, {out / 'report.html'}")
    return [f"{name}: {fault}" for name, way in ways.items() for fault in way.faults()]


def clear(out: Path) -> None:
    for path in map(out.joinpath, RESULTS):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _do(source: DataFrame, way: Callable[..., DataFrame], out: Path, options: argparse.Namespace) -> Tally:
    """Run the job one way against its own service: once into `calls`, from which both other outputs are read."""
    rows, cancelled = source.count(), source.where("dep_time IS NULL")
    numbers = TextColumn("{task.fields[open]} in flight, {task.fields[refused]} retries")
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), numbers, console=console) as progress:
        bar = progress.add_task("[bold]job      ", total=rows - cancelled.count(), open=0, refused=0)

        def watch(seen: Counter[str]) -> None:
            progress.update(bar, completed=seen["200"] + seen["404"], open=seen["open"], refused=seen["503"])

        with serving(Service(options.seed, watch)) as service:
            job = partial(way, url=service.url, workers=options.workers)
            # Not measured: a few flights that make no call, so that Spark starts its Python worker and imports modules.
            cancelled.limit(10).transform(job).write.parquet(str(out / "calls"))
            psutil.cpu_percent()  # the next call returns the use since this one
            started = time.perf_counter()
            source.transform(job).write.mode("overwrite").parquet(str(out / "calls"))
            seconds, busy = time.perf_counter() - started, psutil.cpu_percent() / 100
    calls = source.sparkSession.read.parquet(str(out / "calls"))
    calls.where("_error IS NULL").drop("_error").write.parquet(str(out / "enriched"))
    reason = sf.substring_index("_error.type", ".", -1).alias("reason")
    dead = calls.where("_error IS NOT NULL").select(*source.columns, reason, "_error.message", "_error.attempts")
    dead.write.parquet(str(out / "dead_letters"))
    outputs = {each: pq.read_table(out / each).to_pandas() for each in ("calls", "enriched", "dead_letters")}
    return Tally(rows, **outputs, service=service, seconds=seconds, busy=busy)


def step(name: str, text: str) -> None:
    """Print one step of the run."""
    console.print(f"[bold]{name:<9}[/bold] {text}")
