"""What a user of `map_concurrent` writes: one function that does one call, and one transform that runs many of them.

`fetch` says what went wrong by raising. It knows nothing of threads, retries or other rows: those are options.
"""

import json
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import urllib3
from pyspark.sql import DataFrame

from manytail import Retry
from manytail.spark import Delivery, map_concurrent

SCHEMA = "temp double, wind_speed double, precip double, visib double, attempts int, started double, finished double"


class Cancelled(Exception):
    """The flight never left, so there is no weather to look up. It becomes a failed item without a call."""


class NoWeather(Exception):
    """The service has no weather for that hour (404). The item fails: asking again would not help."""


class Busy(Exception):
    """The service asks to try again (503)."""


def connect(url: str, connections: int = 1) -> urllib3.HTTPConnectionPool:
    """Kept-alive connections; one by default, for one worker thread. No retries: the transform retries and counts."""
    return urllib3.connection_from_url(url, maxsize=connections, retries=False, timeout=30)


def fetch(flight: Any, *, resource: urllib3.HTTPConnectionPool, delivery: Delivery) -> Mapping[str, Any]:
    """The weather at a flight's airport in its scheduled hour."""
    if flight.dep_time is None:
        raise Cancelled(f"{flight.carrier} {flight.flight} to {flight.dest} did not leave")
    started = time.time()
    path = f"/weather/{flight.origin}/{flight.time_hour:%Y-%m-%dT%H}"
    reply = resource.request("GET", path, headers={"Idempotency-Key": delivery.idempotency_key})
    if reply.status == 503:
        raise Busy("the service is busy")
    if reply.status == 404:
        raise NoWeather(f"{flight.origin} {flight.time_hour:%Y-%m-%d %H}:00 UTC")
    weather = json.loads(reply.data)
    found = {name: weather[name] for name in ("temp", "wind_speed", "precip", "visib")}
    return found | {"attempts": delivery.attempt, "started": started, "finished": time.time()}


def enrich(flights: DataFrame, url: str, *, workers: int = 64, per_key: int = 16) -> DataFrame:
    """Every flight with its weather, in input order. A failed one says why in `_error`.

    A few carriers have many flights: `key` serves the carriers round robin, `per_key` limits the calls in flight of
    one carrier. A slow or retried row delays the results behind it, not the calls. `item_id` gives idempotency keys.
    """
    return flights.transform(
        map_concurrent, fetch, SCHEMA, setup=partial(connect, url), workers=workers,
        key="carrier", per_key=per_key, retry=Retry(4, Busy, backoff=0.05), errors="column", item_id="seq",
    )  # fmt: skip
