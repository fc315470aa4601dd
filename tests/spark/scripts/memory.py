"""The peak memory of a task of map_concurrent, over few rows and over many; test_elsewhere.py runs it.

Arguments: a directory for notes, and numbers of rows. Each number is a job of one task with a fresh Python worker,
whose last call notes the peak of its resident set. The last job may need at most 1.2 times the memory of the first.
"""

import os
import sys
from pathlib import Path

from sessions import session

from manytail.spark import map_concurrent

NOTES, SIZES = Path(sys.argv[1]), [int(size) for size in sys.argv[2:]]


def peak_of(rows):
    """In kB."""
    place = NOTES / f"peak-{rows}"

    def fn(row):
        if row.id == rows - 1:
            status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            place.write_text(f"{os.getpid()} {status['VmHWM'].split()[0]}")
        return row.id

    df = spark.range(0, rows, 1, 1).transform(map_concurrent, fn, "same long", max_in_flight=256)
    assert df.selectExpr("count(*)", "sum(same)").first() == (rows, rows * (rows - 1) // 2)
    return tuple(map(int, place.read_text().split()))


spark = session("local[1]", python__worker__reuse="false")
peak_of(1_000)  # the daemon that workers are forked from is there
found = {rows: peak_of(rows) for rows in SIZES}
spark.stop()
processes, peaks = {process for process, _ in found.values()}, [peak for _, peak in found.values()]
assert len(processes) == len(SIZES), "a worker served two jobs"
print("  ".join(f"{rows:,} rows: {peak / 1024:.1f} MiB" for rows, (_, peak) in found.items()))
print(f"ratio: {peaks[-1] / peaks[0]:.3f}")
assert peaks[-1] <= 1.2 * peaks[0]
print("memory: ok")
