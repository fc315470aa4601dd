"""The steps of one run, from the data to the report. `perform` returns what did not add up."""

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from . import compare, data, job, report, tally, timeline
from .console import bar, console, step, table
from .data import Inputs, Share
from .enrich import enrich
from .job import Outputs
from .launch import Running
from .service import Counts
from .session import spark_session
from .stopping import Stopping


class Options(NamedTuple):
    """What a run is asked for."""

    share: Share
    workers: int
    per_key: int
    seed: int
    out: Path
    compare: bool

    @property
    def title(self) -> str:
        when = "2013" if self.share.month is None else f"2013-{self.share.month:02}"
        which = "The flights" if self.share.rows is None else f"The first {self.share.rows:,} flights"
        return f"{which} from New York in {when}, each with its weather"


class Done(NamedTuple):
    """One way of running the job, done."""

    tally: tally.Tally
    times: timeline.Timeline
    history: list[Counts]
    busy: float  # share of this machine's processor time that was in use, by whomever; NaN where the system does not say


class Bench:
    """What both ways of running the job have in common: the input, Spark, and a service for each."""

    def __init__(self, options: Options, inputs: Inputs, chosen: pa.Table, spark: SparkSession) -> None:
        self._options, self._inputs, self._chosen, self._spark = options, inputs, chosen, spark

    def do(self, name: str, transform: Callable[..., DataFrame], outputs: Outputs) -> Done:
        """Runs the job with `transform(flights, url, workers=)` against a service of its own, and counts."""
        options, spark = self._options, self._spark
        flights = job.flights_of(spark, self._inputs.flights, options.share)
        with bar(name, self._chosen.num_rows - self._chosen["dep_time"].null_count) as shown, self._service(shown.heard) as service:
            before = processor()
            seconds = job.run(flights, partial(transform, url=service.url, workers=options.workers), outputs.calls)
            busy = np.subtract(processor(), before)
            counts = service.stop()
        job.split(spark, outputs, flights.columns)
        counted = tally.count(self._chosen.num_rows, outputs, counts, seconds)
        return Done(counted, timeline.read(outputs.calls), service.history, float(busy[0] / busy[1]))

    def _service(self, heard: Callable[[Counts], None]) -> Running:
        return Running(self._inputs.weather, seed=self._options.seed, heard=heard)


def processor() -> tuple[float, float]:
    """Processor time of this machine since it started: in use, and in all."""
    try:
        times = [float(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return float("nan"), float("nan")
    return sum(times) - times[3] - times[4], sum(times)


def perform(options: Options, stopping: Stopping) -> list[str]:
    """Runs the demo. Sentences about what does not add up: empty when all is well. A run that does not get to its end leaves no results."""
    options.out.mkdir(parents=True, exist_ok=True)
    clear(options.out)
    try:
        return _perform(options, stopping)
    except BaseException:
        clear(options.out)
        raise


def clear(out: Path) -> None:
    """Removes the results of an earlier run. The input and Spark's log stay."""
    for folder in (*Outputs.under(out), out / "compare"):
        shutil.rmtree(folder, ignore_errors=True)
    (out / "report.html").unlink(missing_ok=True)


def _perform(options: Options, stopping: Stopping) -> list[str]:
    step("manytail", options.title)
    inputs = data.prepare(options.out / "cache")
    chosen = data.select(inputs.flights, options.share)
    carriers = len(chosen["carrier"].unique())
    step("input", f"{chosen.num_rows:,} flights, {carriers} carriers; weather by HTTP: half of the calls 8 ms or less, 1 % 300 ms or more")
    stopping.check()
    outputs, beside = Outputs.under(options.out), Outputs.under(options.out / "compare")
    with tempfile.TemporaryDirectory(dir=options.out, prefix=".scratch-") as name:
        scratch = Path(name).resolve()
        step("Spark", f"starting; its log is {options.out / 'spark.log'}")
        with spark_session(scratch, options.out / "spark.log") as spark, stopping.by(spark.stop):
            job.warm_up(job.flights_of(spark, inputs.flights, options.share), scratch)
            bench = Bench(options, inputs, chosen, spark)
            done = bench.do("job", partial(enrich, per_key=options.per_key), outputs)
            usual = bench.do("usual way", compare.pool_per_batch, beside) if options.compare else None
    stopping.check()
    _show(options, outputs, done, usual)
    return [*done.tally.faults(), *(f"the usual way: {fault}" for fault in (usual.tally.faults() if usual else ()))]


def _show(options: Options, outputs: Outputs, done: Done, usual: Done | None) -> None:
    page = options.out / "report.html"
    beside = comparison(done, usual) if usual else []
    section = ""
    if beside:
        section = f"<h2>Beside the usual way</h2><p>{COMPARED}</p>" + report.table("", ["", *WAYS], beside)
    shown = report.Run(options.title, options.workers, options.per_key, done.tally, done.times, done.history)
    report.write(page, shown, section)
    names, values = zip(*report.figures(done.tally), strict=True)
    table(names, [values])
    console.print(report.speed_up_note(done.tally), soft_wrap=True, style="dim")
    if beside:
        table(["", *WAYS], beside)
    step("enriched", str(outputs.enriched))
    step("dead", f"{outputs.dead}  " + ", ".join(f"{reason} {rows:,}" for reason, rows in done.tally.reasons.items()))
    step("report", str(page))


WAYS = ("map_concurrent", "pool per batch")
COMPARED = "The same function, rows and service; a thread pool of the same size for each Arrow batch of 1,000 rows inside mapInArrow."


def comparison(done: Done, usual: Done) -> list[tuple[str, str, str]]:
    """Rows of the table that sets both ways side by side."""

    def line(name: str, figure: Callable[[Done], str]) -> tuple[str, str, str]:
        return name, figure(done), figure(usual)

    return [
        line("seconds", lambda way: f"{way.tally.seconds:,.1f}"),
        line("rows/s", lambda way: f"{way.tally.rows_per_second:,.0f}"),
        line("times the pool's rows/s", lambda way: f"{way.tally.rows_per_second / usual.tally.rows_per_second:.2f}"),
        line("enriched", lambda way: f"{way.tally.enriched:,}"),
        line("dead letters", lambda way: f"{way.tally.dead:,}"),
        line("calls", lambda way: f"{way.tally.service.calls:,}"),
        line("processor busy", lambda way: f"{way.busy:.0%}"),
        line("most rows in hand", lambda way: f"{timeline.most_in_hand(way.times):,}"),
        line("most calls at once", lambda way: f"{timeline.most_at_once(way.times):,}"),
        line("most at once for one carrier", lambda way: f"{max((wait.at_once for wait in timeline.waits(way.times)), default=0):,}"),
    ]
