"""bench/picture.py draws what it measures."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.process import environment

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))


def test_calls_in_flight_are_averages_over_each_step():
    from picture import STEP, in_flight

    found = in_flight([(0.0, 2.5 * STEP), (0.5 * STEP, STEP), (2.25 * STEP, 3.5 * STEP)])
    assert [busy for _, busy in found] == pytest.approx([1.5, 1.0, 1.25, 0.5])
    assert [at / STEP for at, _ in found] == pytest.approx([0.5, 1.5, 2.5, 3.5])


def test_a_small_run_is_drawn(tmp_path):
    out = tmp_path / "picture.svg"
    command = [sys.executable, str(BENCH / "picture.py"), "--calls", "200", "--out", str(out)]
    subprocess.run(command, env=environment(), check=True, timeout=120)
    words = [found.text for found in ElementTree.parse(out).iter("{http://www.w3.org/2000/svg}text")]
    assert [word.partition(":")[0] for word in words[-2:]] == ["a thread pool per 1,000", "concurrent_map"]
