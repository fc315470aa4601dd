"""manytail.demo.report: one page that needs nothing else, and says what the run was."""

import base64
import dataclasses
import re
from argparse import Namespace
from collections import Counter
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from manytail.demo import report
from manytail.demo.tally import Tally

ROWS = 400
STARTED = 1000 + np.linspace(0.0, 2.0, ROWS)
ENRICHED = pd.DataFrame({
    "seq": range(ROWS), "carrier": ["UA"] * 300 + ["HA"] * 100, "attempts": [1] * 397 + [2, 2, 3],
    "started": STARTED, "finished": STARTED + 0.02,
})  # fmt: skip
TALLY = Tally(
    rows_in=ROWS + 3,
    calls=ENRICHED,
    enriched=ENRICHED,
    dead_letters=pd.DataFrame(
        {"seq": [ROWS, ROWS + 1, ROWS + 2], "reason": ["Cancelled", "Cancelled", "NoWeather"], "attempts": 1}
    ),
    service=SimpleNamespace(
        counts=Counter({"calls": 405, "200": 400, "404": 1, "503": 4}), latency=6.5, history=[(1000.1, 7), (1002.2, 0)]
    ),
    seconds=1.25,
    busy=0.5,
)
USUAL = dataclasses.replace(TALLY, seconds=2.5)


def page(*tallies: Tally) -> str:
    options = Namespace(workers=64, per_key=16, month=1)
    return report.page(
        "Flights <of> a test", options, dict(zip(("map_concurrent", "pool per batch"), tallies, strict=False))
    )


def plots(text: str) -> dict[str, str]:
    """The plots of a page, by title."""
    found = re.findall(r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)">', text)
    return {name: base64.b64decode(data).decode() for name, data in found}


def test_it_shows_the_figures_of_the_run_with_plots_and_loads_nothing():
    text = page(TALLY)
    assert re.findall("<script|<link|@import", text) == []
    assert all(source.startswith("data:") for source in re.findall(r'(?:src|href)="([^"]*)"', text))
    assert "Flights &lt;of&gt; a test" in text
    drawn = plots(text)
    assert set(drawn) == {"Rows per second and calls in flight over time", report.draw_waits.__doc__}
    for svg in drawn.values():
        assert len(list(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"))) > 10
    assert dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", text)) == {
        "rows in": "403", "enriched": "400", "dead letters": "3", "lost": "0", "calls": "405", "retries": "4",
        "seconds": "1.2", "rows/s": "322", "speed-up": "5.2 x", "processor busy": "50%",
        "mean in flight": "4", "most in flight": "4", "most of a carrier": "4",
    }  # fmt: skip
    assert "It adds up." in text
    assert re.search(r"<th>NoWeather</th>\s*<td>1</td>", text)
    assert re.search(r"<th>2</th>\s*<td>2</td>", text)  # rows by attempts


def test_what_does_not_add_up_is_said():
    text = page(dataclasses.replace(TALLY, rows_in=ROWS + 4))
    assert "It adds up." not in text
    assert "1 lost" in text


def test_the_comparison_is_part_of_the_page():
    assert "Beside the usual way" not in page(TALLY)
    text = page(TALLY, USUAL)
    assert "Beside the usual way" in text
    assert "2.00 x its rows/s" in text
    assert re.search(r"<th>rows/s</th>\s*<td>322</td>\s*<td>161</td>", text)


def test_a_run_without_calls_has_a_page_too():
    nothing = ENRICHED.assign(started=np.nan, finished=np.nan, attempts=np.nan)[:2]
    tally = dataclasses.replace(TALLY, rows_in=3, calls=nothing, enriched=ENRICHED[:0])
    assert len(plots(page(tally))) == 2


@pytest.mark.parametrize(
    ("small", "verdict"),
    [(0.0, "Fair: "), (0.030, "Fair: "), (0.036, "Fair: "), (0.050, "Not fair: ")],
    ids=["none", "equal", "near", "longer"],
)
def test_fair_means_that_nobody_waits_longer_than_the_busiest(small, verdict):
    assert verdict in report.fairness(pd.DataFrame({"half": [0.030, small]}, index=["UA", "HA"]))
