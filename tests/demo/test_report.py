"""manytail.demo.report: one page that needs nothing else, and says what the run was."""

import base64
import dataclasses
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from manytail.demo import report, timeline
from manytail.demo.service import Counts
from manytail.demo.tally import Tally
from manytail.demo.timeline import Timeline

ROWS = 400
TALLY = Tally(
    rows_in=ROWS + 3,
    enriched=ROWS,
    dead=3,
    doubled=0,
    in_order=True,
    reasons={"Cancelled": 2, "NoWeather": 1},
    attempts={1: 397, 2: 4},
    service=Counts(calls=405, found=400, missing=1, refused=4, slept=6.5),
    seconds=1.25,
)


@pytest.fixture
def run():
    started = np.linspace(0.0, 2.0, ROWS)
    carrier = np.array(["UA"] * 300 + ["HA"] * 100)
    times = Timeline(1000.0, carrier, started, started + 0.02, np.full(ROWS, 0.004))
    return report.Run("Flights <of> a test", 64, 16, TALLY, times, [Counts(calls=9, in_flight=7, at=1000.1), Counts(calls=405, at=1002.2)])


def page(run, tmp_path, compared=""):
    path = tmp_path / "report.html"
    report.write(path, run, compared)
    return path.read_text(encoding="utf-8")


def plots(text: str) -> dict[str, str]:
    """The plots of a page by what they are called: the text that each shows."""
    found = re.findall(r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)">', text)
    return {name: base64.b64decode(data).decode() for name, data in found}


def test_it_loads_nothing_from_anywhere(run, tmp_path):
    text = page(run, tmp_path)
    assert "<script" not in text
    assert "<link" not in text
    assert "@import" not in text
    assert all(source.startswith("data:") for source in re.findall(r'(?:src|href)="([^"]*)"', text))


def test_it_shows_the_figures_of_the_run(run, tmp_path):
    text = page(run, tmp_path)
    shown = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", text))
    assert shown == {
        "rows in": "403", "enriched": "400", "dead": "3", "lost": "0", "calls": "405", "retries": "4",
        "seconds": "1.2", "rows/s": "322", "speed-up": "5.2 x",
    }  # fmt: skip
    assert "It adds up." in text
    assert "took 6 s in all" in text
    assert "<td>NoWeather</td><td>1</td>" in text


def test_every_plot_is_there_and_is_a_drawing(run, tmp_path):
    drawn = plots(page(run, tmp_path))
    assert set(drawn) == {
        "Rows per second over time",
        "Calls in flight over time",
        "How long rows of each carrier were held back, and its calls at once",
        "Rows by attempts",
    }
    for svg in drawn.values():
        assert len(list(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"))) > 10


def test_names_are_escaped(run, tmp_path):
    assert "Flights &lt;of&gt; a test" in page(run, tmp_path)


def test_what_does_not_add_up_is_said_first(run, tmp_path):
    text = page(run._replace(tally=dataclasses.replace(TALLY, rows_in=ROWS + 4)), tmp_path)
    assert "It adds up." not in text
    assert "1 lost" in text


def test_the_comparison_is_part_of_the_page(run, tmp_path):
    assert "<h2>Beside the usual way</h2>" in page(run, tmp_path, "<h2>Beside the usual way</h2>")


def test_a_run_without_calls_has_a_page_too(run, tmp_path):
    nothing = np.full(2, np.nan)
    tally = dataclasses.replace(TALLY, rows_in=2, enriched=0, dead=2, reasons={"Cancelled": 2}, attempts={}, service=Counts())
    empty = run._replace(tally=tally, times=Timeline(0.0, np.array(["UA", "HA"]), nothing, nothing, nothing), history=[Counts()])
    assert len(plots(page(empty, tmp_path))) == 4


@pytest.mark.parametrize(
    ("small", "verdict"), [(0.0, "Fair: "), (0.030, "Fair: "), (0.036, "Fair: "), (0.050, "Not fair: ")], ids=["none", "equal", "near", "longer"]
)
def test_fair_means_that_nobody_waits_longer_than_the_busiest(small, verdict):
    waits = [timeline.Wait("UA", 1000, 0.030, 0.060, 16), timeline.Wait("HA", 10, small, 0.060, 2)]
    assert verdict in report.fairness(waits)
