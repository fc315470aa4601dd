"""The weather service, run for real: its answers, its refusals, its counts."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import urllib3

from manytail.demo import data
from manytail.demo.service import LONGEST, MEDIAN, SLOW, Service, serving, temper

HOUR = "/weather/EWR/2013-01-01T06"
DEADLINE = 60
SEED = 13


@pytest.fixture
def service():
    with serving(Service(SEED)) as running:
        yield running


def ask(service: Service, path: str, key: str = "") -> urllib3.BaseHTTPResponse:
    headers = {"Idempotency-Key": key} if key else {}
    return urllib3.request("GET", service.url + path, headers=headers, retries=False, timeout=DEADLINE)


def key_refused(times: int) -> str:
    """A key that the service refuses so many times before it answers."""
    return next(key for key in map(str, range(100_000)) if temper(SEED, key)[1] == times)


@pytest.mark.parametrize("times", [0, 1, 2])
def test_an_hour_is_answered_after_so_many_refusals_of_its_key(service, times):
    key = key_refused(times)
    replies = [ask(service, HOUR, key) for _ in range(times + 2)]
    assert [reply.status for reply in replies] == [503] * times + [200, 200]
    assert replies[-1].json() == data.weather()["EWR", "2013-01-01T06"]


def test_calls_answers_and_latencies_are_counted():
    watched = []
    fine, refused = key_refused(0), key_refused(1)
    with serving(Service(SEED, lambda counts: watched.append(counts["calls"]))) as service:
        for path, key in [(HOUR, fine), (HOUR, refused), (HOUR, refused), ("/weather/JFK/1999-01-01T00", fine)]:
            ask(service, path, key)
    assert service.counts == {"calls": 4, "200": 2, "404": 1, "503": 1, "open": 0}
    assert service.latency == pytest.approx(2 * temper(SEED, refused)[0] + 2 * temper(SEED, fine)[0])
    assert watched[-1] == 4
    moments, open_calls = zip(*service.history, strict=True)
    assert list(moments) == sorted(moments)
    assert set(open_calls) <= {0, 1}


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


def test_many_kept_alive_connections_are_served_together():
    def client(number: int) -> list[int]:
        pool = urllib3.connection_from_url(service.url, maxsize=1, retries=False, timeout=DEADLINE)
        statuses = [pool.request("GET", HOUR, headers={"Idempotency-Key": f"{number}-{n}"}).status for n in range(20)]
        assert pool.num_connections == 1
        return statuses

    with serving(Service(SEED)) as service, ThreadPoolExecutor(64) as threads:
        statuses = [status for statuses in threads.map(client, range(64)) for status in statuses]
    assert len(statuses) == service.counts["calls"] == 64 * 20
    refused = sum(temper(SEED, f"{number}-{n}")[1] > 0 for number in range(64) for n in range(20))
    assert statuses.count(503) == service.counts["503"] == refused > 0
    assert service.counts["open"] == 0


def test_it_listens_on_loopback_only_and_ends_with_its_block(service):
    with serving(Service(SEED)) as other:
        assert other.url.startswith("http://127.0.0.1:")
        assert other.url != service.url
    with pytest.raises(urllib3.exceptions.NewConnectionError):
        ask(other, HOUR)


def test_it_ends_when_its_block_fails():
    with pytest.raises(LookupError), serving(Service(SEED)) as service:
        raise LookupError("in the block")
    with pytest.raises(urllib3.exceptions.NewConnectionError):
        ask(service, HOUR)
