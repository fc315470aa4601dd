"""The weather service, run for real: its answers, its refusals, its counts, and how it ends."""

import signal
import subprocess
import sys
import threading

import pytest
import urllib3

from manytail.demo.launch import Running
from manytail.demo.service import LONGEST, MEDIAN, SLOW, Counts, temper

HOUR = "/weather/EWR/2013-01-01T06"
DEADLINE = 60
SEED = 13


@pytest.fixture
def service(inputs):
    with Running(inputs.weather, seed=SEED) as running:
        yield running


def ask(service: Running, path: str, key: str = "") -> urllib3.BaseHTTPResponse:
    headers = {"Idempotency-Key": key} if key else {}
    return urllib3.request("GET", service.url + path, headers=headers, retries=False, timeout=DEADLINE)


def key_refused(times: int, seed: int = SEED) -> str:
    """A key that the service refuses so many times before it answers."""
    return next(key for key in map(str, range(100_000)) if temper(seed, key)[1] == times)


def test_an_hour_with_weather_is_answered_with_it(service):
    reply = ask(service, HOUR, key_refused(0))
    assert reply.status == 200
    assert reply.json()["temp"] == 39.02


def test_an_hour_without_weather_is_404(service):
    reply = ask(service, "/weather/EWR/1999-01-01T00", key_refused(0))
    assert reply.status == 404
    assert "EWR" in reply.json()["error"]


@pytest.mark.parametrize("times", [1, 2])
def test_an_unlucky_key_is_refused_before_it_is_answered(service, times):
    key = key_refused(times)
    assert [ask(service, HOUR, key).status for _ in range(times + 2)] == [503] * times + [200, 200]


def test_the_counts_are_shown_without_being_counted(service):
    refused = key_refused(1)
    for path, key in [(HOUR, key_refused(0)), (HOUR, refused), (HOUR, refused), ("/weather/JFK/1999-01-01T00", key_refused(0))]:
        ask(service, path, key)
    shown = Counts(**ask(service, "/counts").json())
    assert (shown.calls, shown.found, shown.missing, shown.refused, shown.in_flight) == (4, 2, 1, 1, 0)
    assert shown.slept == pytest.approx(2 * temper(SEED, refused)[0] + 2 * temper(SEED, key_refused(0))[0])
    final = service.stop()
    assert (final.calls, final.found, final.missing, final.refused, final.in_flight) == (4, 2, 1, 1, 0)


def test_the_seed_decides_latency_and_refusals():
    keys = [str(number) for number in range(20_000)]
    drawn = [temper(SEED, key) for key in keys]
    assert drawn == [temper(SEED, key) for key in keys]
    assert drawn != [temper(SEED + 1, key) for key in keys]
    latencies = [latency for latency, _ in drawn]
    assert sorted(latencies)[len(keys) // 2] == pytest.approx(MEDIAN, rel=0.05)
    assert sum(latency >= SLOW for latency in latencies) / len(keys) == pytest.approx(0.01, abs=0.002)
    assert 0 < min(latencies) < MEDIAN / 10
    assert 3 * SLOW < max(latencies) <= LONGEST
    refusals = [times for _, times in drawn]
    assert refusals.count(0) / len(keys) == pytest.approx(0.99, abs=0.002)
    assert 0 < refusals.count(2) < refusals.count(1)


def test_many_kept_alive_connections_are_served_together(service):
    together = threading.Barrier(64)
    statuses: list[int] = []

    def client(number: int) -> None:
        with urllib3.HTTPConnectionPool("127.0.0.1", int(service.url.rpartition(":")[2]), maxsize=1, retries=False, timeout=DEADLINE) as pool:
            together.wait(DEADLINE)
            statuses.extend(pool.request("GET", HOUR, headers={"Idempotency-Key": f"{number}-{call}"}).status for call in range(20))
            assert pool.num_connections == 1

    in_threads(client, 64)
    counts = service.stop()
    assert len(statuses) == counts.calls == 64 * 20
    assert statuses.count(503) == counts.refused == sum(temper(SEED, f"{n}-{c}")[1] > 0 for n in range(64) for c in range(20))
    assert max(said.in_flight for said in service.history) > 1


def in_threads(work, count: int) -> None:
    """Runs work(0), work(1), ... in threads; the first exception of one is raised here."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def test_it_says_its_counts_while_it_works_without_being_asked(inputs):
    first = threading.Event()
    heard: list[Counts] = []

    def listen(counts: Counts) -> None:
        heard.append(counts)
        first.set()

    with Running(inputs.weather, seed=SEED, heard=listen) as service:
        ask(service, HOUR, key_refused(0))
        assert first.wait(DEADLINE)
        assert heard[0].calls == 1
        assert service.stop() == heard[-1]
        assert heard[-1].settled == 1


def test_it_listens_on_loopback_only(service):
    assert service.url.startswith("http://127.0.0.1:")


def test_a_service_that_cannot_start_is_an_error(tmp_path, capfd):
    with pytest.raises(RuntimeError, match="did not start"), Running(tmp_path / "none.sqlite", seed=SEED):
        raise AssertionError("it started")
    assert "unable to open database file" in capfd.readouterr().err


def test_a_service_that_died_has_no_final_counts(service):
    ask(service, HOUR)
    service._process.kill()
    with pytest.raises(RuntimeError, match=f"exit status -{signal.SIGKILL.value}"):
        service.stop()


PARENT = """
import os, signal, sys
from pathlib import Path
from manytail.demo.launch import Running

with Running(Path(sys.argv[1]), seed=1) as service:
    print(service.url, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_does_not_outlive_a_parent_that_was_killed(inputs):
    # The service inherits standard error: it ends when the last of its holders has.
    parent = subprocess.Popen([sys.executable, "-c", PARENT, inputs.weather], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = parent.communicate(timeout=DEADLINE)
    assert parent.returncode == -signal.SIGKILL
    assert out.startswith(b"http://127.0.0.1:")
    assert errors == b""
