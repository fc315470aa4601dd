"""The page of a run: one HTML file that loads nothing. Pure."""

import inspect
from html import escape
from string import Template

from . import job
from .claims import Claim, Seen, answers, requests_per_second
from .svg import BLUE, GREY, ORANGE, Line, Mark, chart

PAGE = Template("""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>manytail: a demo</title>
<style>
  body { margin: 2.5rem auto; max-width: 50rem; padding: 0 1.25rem; background: #fff; color: #1f2937;
         font: 16px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
  h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .25rem; } p { margin: .25rem 0 .75rem; }
  .dim { color: #6b7280; font-size: .9rem; } .good { color: #15803d; } .bad { color: #b91c1c; font-weight: bold; }
  svg { display: block; width: 100%; height: auto; }
  table { border-collapse: collapse; } td { padding: .3rem 1rem .3rem 0; vertical-align: top; }
  tr + tr { border-top: 1px solid #e5e7eb; }
  pre { background: #f3f4f6; border-radius: .5rem; padding: .75rem 1rem; overflow-x: auto; font-size: .85rem; }
</style>
<h1>$items calls to an API that allows $quota a second</h1>
<p class="dim">The API ran on this machine, in a process of its own. Half of its answers took 40 ms or less, one in
fifty half a second or more; one in twenty-five failed the first time. All figures are by its own count.</p>
<table>$claims</table>
<h2>Answers over time</h2>
<p>The pool of $workers threads asked for everything at once. It was refused, and what was refused was lost.</p>
$over_time
<h2>Requests within a second</h2>
<p>The map asked for $rate a second, a little less than the API allows.</p>
$per_second
<h2>Killed and resumed</h2>
<p>The process was killed with -9 (TerminateProcess on Windows), then the same call was made again. It began with what
run.db had. The step down is what was paid for twice: $twice of $items.</p>
$resumed
<h2>The code</h2>
<pre>$code</pre>
<p class="dim">Made by <code>python -m manytail demo</code>.</p>
</html>
""")


def page(seen: Seen, found: list[Claim]) -> str:
    first = {run: min(event.came for event in seen.of(run)) for run in ("pool", "map", "job")}
    pool, mapped = (answers(seen.of(run, 200), first[run]) for run in ("pool", "map"))
    long = mapped[-1][0]
    begun = seen.resumed_at - first["job"]
    before = answers(seen.killed_job, first["job"])
    after = [event for event in seen.of("job", 200) if event.came >= seen.resumed_at]
    resumed = [(at + begun, n) for at, n in answers(after, seen.resumed_at, seen.recorded)]
    whole = f"{seen.items:,}"
    return PAGE.substitute(
        items=whole, quota=seen.quota, workers=job.WORKERS, rate=f"{job.PART * seen.quota:g}",
        twice=f"{len(seen.twice):,}",
        claims="\n".join(map(row, found)),
        over_time=chart(
            "Answers of the pool and of the map over time", "seconds from the first request", "answers",
            [Line("a pool of threads", ORANGE, [*pool, (long, pool[-1][1])]), Line("concurrent_map", BLUE, mapped)],
        ),
        per_second=chart(
            "Requests of the pool and of the map within the last second", "seconds from the first request",
            "requests in the last second",
            [
                Line("quota", GREY, [(0, seen.quota), (long, seen.quota)], dashed=True),
                Line("a pool of threads", ORANGE, requests_per_second(seen.of("pool"), long)),
                Line("concurrent_map", BLUE, requests_per_second(seen.of("map"), long)),
            ],
        ),
        resumed=chart(
            "Results of the killed and of the resumed run over time", "seconds from the first request",
            "results paid for",
            [Line("killed run", GREY, before), Line("resumed run", BLUE, resumed)],
            [Mark(seen.killed - first["job"], "killed")],
        ),
        code=escape(inspect.getsource(job)),
    )  # fmt: skip


def row(claim: Claim) -> str:
    word, look = ("yes", "good") if claim.holds else ("no", "bad")
    return f'<tr><td class="{look}">{word}<td>{escape(claim.text)}<td class="dim">{escape(claim.found)}</tr>'
