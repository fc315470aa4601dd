"""`python -m manytail demo`, run as a user runs it, without any extra; and its claims, each with a planted fault."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from manytail.demo.local.api import Event, temper
from manytail.demo.local.claims import Seen, claims, requests_per_second
from manytail.demo.local.svg import Line, Mark, chart, ticks
from manytail.mapping import Quantiles, Stats

FEW = ("demo", "--items", "150", "--out", "here/out")


def test_every_claim_holds_and_the_page_shows_the_curves(bare, tmp_path):
    ran = bare(*FEW)
    assert ran.stderr == ""
    assert ran.returncode == 0
    said = re.findall(r"^  (yes|NO ) +(.*?): ", ran.stdout, re.MULTILINE)
    assert [word for word, _ in said] == ["yes"] * 7
    assert ran.stdout.endswith(f"The curves: {Path('here/out/index.html')}\n")
    page = (tmp_path / "here" / "out" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'class="good">yes<td>(.*?)<td', page) == [claim for _, claim in said]
    assert re.findall(r"(?:src|href)=|@import|url\(", page) == []  # it loads nothing
    charts = [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    assert len(charts) == 3
    assert "limits=Rate(PART * quota), retry=Retry.http(), remember=remember" in page
    assert {path.name for path in tmp_path.iterdir()} == {"manytail", "here"}


# The resumed run has forgotten what was paid for.
FORGETS = """
from manytail.demo.local import job
job.mapped = lambda urls, quota, remember=None, mapped=job.mapped: mapped(urls, quota)
"""


def test_a_claim_that_does_not_hold_fails_the_run_with_a_sentence(bare, tmp_path):
    ran = bare(*FEW, planted=FORGETS)
    assert ran.returncode == 1
    assert re.fullmatch(
        r"Does not hold: What was recorded before the kill was not called again "
        r"\([1-9]\d* recorded, 0 taken from run\.db, 150 called\)\.",
        ran.stderr.splitlines()[0],
    )
    assert "NO   What was recorded" in ran.stdout
    assert 'class="bad">no' in (tmp_path / "here" / "out" / "index.html").read_text(encoding="utf-8")


def test_a_killed_run_that_ends_by_itself_is_no_proof(bare, tmp_path):
    ran = bare(*FEW, planted="from manytail.demo.local import cli\ncli.KILLED_AT = 2.0")
    assert ran.stderr == "manytail demo failed: the run ended by itself, with exit status 0\n"
    assert ran.returncode == 1
    assert {path.name for path in tmp_path.iterdir()} == {"manytail"}


def test_a_pool_that_is_not_refused_enough_gets_half_the_quota_and_half_the_items(bare):
    """As on a slow machine: as many calls as the quota, or fewer, are within it."""
    ran = bare("demo", "--items", "600", planted="from manytail.demo.local import api\napi.QUOTA = 800")
    assert ran.stderr == ""
    assert ran.returncode == 0
    quotas = [int(quota) for quota in re.findall(r"^the API +(\d+) calls a second", ran.stdout, re.MULTILINE)]
    assert quotas[:4] == [800, 400, 200, 100]
    assert re.findall(r"^a pool +(\d+) calls", ran.stdout, re.MULTILINE)[:4] == ["600", "300", "150", "150"]
    assert f"limits=Rate({0.9 * quotas[-1]:g})" in ran.stdout
    refused = re.search(r"whose first call failed: \d+ of 150 lost; (\d+) refused", ran.stdout)
    assert int(refused[1]) >= 50


@pytest.mark.parametrize("when", ["the map", "killed"])
def test_ctrl_c_ends_every_process_with_one_word(start_bare, when):
    process = start_bare(*FEW)
    for line in process.stdout:
        if line.startswith(when):
            os.killpg(process.pid, signal.SIGINT)  # to every process of the group, as a terminal does
            break
    assert line.startswith(when)
    _, errors = process.communicate(timeout=120)
    assert errors == "Stopped.\n"
    assert process.returncode == 130


# A run of four items: the pool lost two, the killed run had paid for three of which one was not recorded.
STATS = Stats(*[0] * 6, 0, 0, 0.0, 0.0, Quantiles(0, 0, 0, 0), Quantiles(0, 0, 0, 0), {})
WHOLE = [f"answer {number}" for number in range(4)]


def event(at, run, number, status=200):
    return Event(at - 0.01, at, run, number, status)


GOOD = Seen(
    items=4,
    quota=3,
    events=[
        *(event(1.0, "pool", 0), event(1.0, "pool", 1), event(1.0, "pool", 2, 429), event(1.0, "pool", 3, 503)),
        *(event(2.0 + number, "map", number) for number in range(4)),
        *(event(10.0, "job", 0), event(11.0, "job", 1), event(12.0, "job", 2)),
        *(event(13.1, "job", 2), event(13.2, "job", 3)),
    ],
    pool=[*WHOLE[:2], None, None],
    mapped=WHOLE,
    stats=STATS,
    killed=12.1,
    recorded=2,
    resumed_at=13.0,
    resumed=WHOLE,
    resumed_stats=STATS._replace(remembered=2),
)


def test_the_claims_hold_for_a_good_run():
    assert [claim for claim in claims(GOOD) if not claim.holds] == []


PLANTED = {
    "The pool lost each": [
        {"pool": WHOLE},  # nothing was lost
        {"pool": [*WHOLE[:1], None, None, None]},  # more was lost than the API says
        {"events": [one for one in GOOD.events if one.status != 429]},  # no quota
    ],
    "The map lost nothing": [{"mapped": WHOLE[:3]}, {"mapped": WHOLE[::-1]}, {"mapped": [*WHOLE, WHOLE[3]]}],
    "The map was refused less often": [
        {"events": [*GOOD.events, event(6.0, "map", 3, 429)]},  # as often as the pool
        {"stats": STATS._replace(deferred=1)},
    ],
    "The map paid for each": [
        {"events": [*GOOD.events, event(6.0, "map", 3)]},
        {"events": [one for one in GOOD.events if one.run != "map" or one.number]},
    ],
    "The killed run was resumed": [{"resumed": WHOLE[:3]}, {"resumed_at": 9.0}, {"resumed_at": 14.0}],
    "What was recorded": [
        {"recorded": 3},
        {"recorded": 0, "resumed_stats": STATS},
        {"events": [*GOOD.events, event(13.3, "job", 3)]},
    ],
    "Only answers of the last": [{"killed": 13.1}, {"events": [*GOOD.events, event(12.1, "job", 2)]}],
}


@pytest.mark.parametrize(
    ("claim", "fault"), [(claim, fault) for claim, faults in PLANTED.items() for fault in faults], ids=str
)
def test_a_claim_does_not_hold_with_a_planted_fault(claim, fault):
    assert claim in " ".join(found.text for found in claims(replace(GOOD, **fault)) if not found.holds)


def test_every_claim_has_a_planted_fault():
    assert all(any(claim.text.startswith(begin) for begin in PLANTED) for claim in claims(GOOD))
    assert len(claims(GOOD)) == len(PLANTED)


def test_calls_have_a_long_tail_and_some_fail_once():
    latencies, fails = zip(*map(temper, range(5_000)), strict=True)
    assert sorted(latencies)[2_500] == pytest.approx(0.04, rel=0.1)
    assert sum(latency >= 0.5 for latency in latencies) / 5_000 == pytest.approx(0.02, abs=0.006)
    assert max(latencies) <= 1.0
    assert sum(fails) / 5_000 == pytest.approx(0.04, abs=0.01)


def test_requests_within_a_second_are_counted_from_the_first_one():
    came = [event(at, "map", 0) for at in (5.01, 5.51, 6.21)]
    found = requests_per_second(came, until=2.0, step=0.25)
    assert [count for _, count in found] == [1, 1, 2, 2, 1, 2, 1, 1, 1]
    assert [round(at, 2) for at, _ in found] == [0.25 * n for n in range(9)]


@pytest.mark.parametrize(
    ("most", "expected"),
    [(500, [0, 100, 200, 300, 400, 500]), (6.6, [0, 2, 4, 6, 8]), (0.3, [0, 0.1, 0.2, 0.3]), (0, [0])],
)
def test_ticks_are_round_and_reach_the_last_point(most, expected):
    assert ticks(most, 6) == pytest.approx(expected)


def test_a_chart_names_its_axes_and_lines_and_draws_within_them():
    lines = [Line("ours & theirs", "#000", [(0, 0), (3.3, 70)]), Line("quota", "#111", [(0, 50), (3.3, 50)], True)]
    drawn = ElementTree.fromstring(chart("A & B", "seconds", "calls", lines, [Mark(1.5, "killed")]))
    name = "{http://www.w3.org/2000/svg}"
    assert drawn.findtext(f"{name}title") == "A & B"
    words = [found.text for found in drawn.iter(f"{name}text")]
    assert {"seconds", "calls", "ours & theirs", "quota", "killed", "0", "3", "80"} <= set(words)
    width, height = map(float, drawn.get("viewBox").split()[2:])
    paths = [found.get("d") for found in drawn.iter(f"{name}path") if found.get("fill") == "none"]
    for x, y in (map(float, point.split()) for path in paths for point in path[1:].split("L")):
        assert 0 < x < width
        assert 0 < y < height
