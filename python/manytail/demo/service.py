"""The weather service: HTTP on loopback, in a thread of the driver's process, which is idle while Spark runs the job.

GET /weather/<airport>/<UTC hour, 2013-01-01T10>   200 with a JSON object, 404 no weather of that hour, 503 try again

It varies as such services do, but equally in every run: the seed and the call's Idempotency-Key decide how long the
call takes (log-normal: half of the calls 8 ms or less, one in a hundred 300 ms or more) and whether it is refused with
503 first (1 % of keys; one in ten of those twice).
"""

import asyncio
import math
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import NormalDist

from aiohttp import web

from . import data

MEDIAN, SLOW, LONGEST = 0.008, 0.300, 2.0  # seconds; one call in a hundred takes SLOW or more
SPREAD = math.log(SLOW / MEDIAN) / NormalDist().inv_cdf(0.99)
REFUSED, REFUSED_TWICE = 0.01, 0.001


def temper(seed: int, key: str) -> tuple[float, int]:
    """Latency in seconds and number of refusals of the calls with that Idempotency-Key."""
    chance = random.Random(f"{seed}/{key}")
    luck, latency = chance.random(), chance.lognormvariate(math.log(MEDIAN), SPREAD)
    return min(latency, LONGEST), 2 if luck < REFUSED_TWICE else 1 if luck < REFUSED else 0


class Service:
    """`counts`: `calls`, `open` calls, answers by status (`200`, `404`, `503`). `latency`: the sum of all latencies,
    in seconds. `history`: (time of day, open calls), ten times a second; `watch` is called with the counts as often.
    Only the event loop changes the counts, so they need no lock. They are final when `serving` ends."""

    def __init__(self, seed: int, watch: Callable[[Counter[str]], object] = len) -> None:
        self.url, self.stopped, self.latency = "", False, 0.0
        self.counts: Counter[str] = Counter()
        self.history: list[tuple[float, int]] = []
        self._seed, self._watch, self._weather = seed, watch, data.weather()
        self._refusals_left: dict[str, int] = {}

    async def answer(self, request: web.Request) -> web.Response:
        key = request.headers.get("Idempotency-Key", request.path)
        latency, refusals = temper(self._seed, key)
        self.latency += latency
        self.counts.update(calls=1, open=1)
        try:
            await asyncio.sleep(latency)
            left = self._refusals_left.get(key, refusals)
            self._refusals_left[key] = max(0, left - 1)
            weather = self._weather.get((request.match_info["origin"], request.match_info["hour"]))
            status = 503 if left else 404 if weather is None else 200
            self.counts[str(status)] += 1
            return web.json_response(weather, status=status)
        finally:
            self.counts["open"] -= 1

    async def listen(self, listener: socket.socket) -> None:
        """Answer until `stopped` is set. Calls that are open then have a second to end."""
        app = web.Application()
        app.router.add_get("/weather/{origin}/{hour}", self.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        while not self.stopped:
            self.history.append((time.time(), self.counts["open"]))
            self._watch(self.counts)
            await asyncio.sleep(0.1)
        await runner.cleanup()
        self._watch(self.counts)


@contextmanager
def serving(service: Service) -> Iterator[Service]:
    """The service answers at `service.url` inside the block."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener, ThreadPoolExecutor(1, "weather") as thread:
        service.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        ended = thread.submit(asyncio.run, service.listen(listener))
        try:
            yield service
        finally:
            service.stopped = True
            ended.result()
