"""The weather service: `python -m manytail.demo.service weather.sqlite --seed 13`.

GET /weather/<airport>/<UTC hour, 2013-01-01T10>   200 with a JSON object, 404 for an hour without weather, 503 "try again"
GET /counts                                         its counts as JSON

It behaves as such services do, but the same way in every run: the seed and the caller's Idempotency-Key decide how long a call takes (log-normal:
half of the calls 8 ms or less, one in a hundred 300 ms or more) and whether it is refused with 503 first (1 % of keys; one in ten of those twice).
A call without the header is its own path.

It talks to whoever started it over its standard streams. Out: one JSON line {"url": ...} when it listens, then a line of counts at most every
PUSH_EVERY seconds while something changes, and the last counts before it ends. In: nothing; end of file is the request to stop, so it cannot
outlive its parent, however that one died. The port is chosen by the system, on loopback only.
"""

import argparse
import asyncio
import dataclasses
import hashlib
import json
import math
import os
import sqlite3
import sys
import threading
import time
from pathlib import Path
from statistics import NormalDist

from aiohttp import web

from .data import WEATHER

MEDIAN, SLOW, LONGEST = 0.008, 0.300, 2.0  # seconds; one call in a hundred takes SLOW or more
SPREAD = math.log(SLOW / MEDIAN) / NormalDist().inv_cdf(0.99)
REFUSED, REFUSED_TWICE = 0.01, 0.001
PUSH_EVERY = 0.1


@dataclasses.dataclass
class Counts:
    """What the service has seen. `slept` is the sum of the latencies it gave: the least that these calls take one after another."""

    calls: int = 0
    found: int = 0
    missing: int = 0
    refused: int = 0
    in_flight: int = 0
    slept: float = 0.0
    at: float = 0.0

    @property
    def settled(self) -> int:
        """Calls that got a final answer."""
        return self.found + self.missing


def temper(seed: int, key: str) -> tuple[float, int]:
    """Latency in seconds and number of refusals of the calls that carry `key`."""
    digest = hashlib.blake2b(f"{seed}/{key}".encode(), digest_size=16).digest()
    pace, luck = ((int.from_bytes(digest[i : i + 6], "big") + 0.5) / 2**48 for i in (0, 8))  # within (0, 1)
    refusals = 2 if luck < REFUSED_TWICE else 1 if luck < REFUSED else 0
    return min(MEDIAN * math.exp(SPREAD * NormalDist().inv_cdf(pace)), LONGEST), refusals


class Service:
    """The handlers. One event loop, so the counts need no lock."""

    def __init__(self, database: Path, seed: int) -> None:
        self.counts = Counts()
        self._seed = seed
        self._database = sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)
        self._query = f"SELECT {', '.join(WEATHER)} FROM weather WHERE origin = ? AND hour = ?"
        self._refusals_left: dict[str, int] = {}  # only keys that are refused at all: 1 % of them
        self._push_is_due = False

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/weather/{origin}/{hour}", self.weather)
        app.router.add_get("/counts", self.show_counts)
        return app

    async def show_counts(self, request: web.Request) -> web.Response:
        return web.json_response(dataclasses.asdict(self.counts))

    async def weather(self, request: web.Request) -> web.Response:
        counts = self.counts
        counts.calls += 1
        counts.in_flight += 1
        self._push_soon()
        key = request.headers.get("Idempotency-Key", request.path)
        latency, refusals = temper(self._seed, key)
        counts.slept += latency
        try:
            await asyncio.sleep(latency)
            return self._answer(request.match_info["origin"], request.match_info["hour"], key, refusals)
        finally:
            counts.in_flight -= 1
            self._push_soon()

    def _answer(self, origin: str, hour: str, key: str, refusals: int) -> web.Response:
        left = self._refusals_left.get(key, refusals)
        if left:
            self._refusals_left[key] = left - 1
            self.counts.refused += 1
            return web.json_response({"error": "busy, try again"}, status=503)
        # A primary-key look-up in a file that the system has in memory: microseconds, so it may run in the loop.
        row = self._database.execute(self._query, (origin, hour)).fetchone()
        if row is None:
            self.counts.missing += 1
            return web.json_response({"error": f"no weather at {origin} for {hour}"}, status=404)
        self.counts.found += 1
        return web.json_response(dict(zip(WEATHER, row, strict=True)))

    def _push_soon(self) -> None:
        if not self._push_is_due:
            self._push_is_due = True
            asyncio.get_running_loop().call_later(PUSH_EVERY, self.push)

    def push(self) -> None:
        """One line of counts to the parent."""
        self._push_is_due = False
        self.counts.at = time.time()
        say(dataclasses.asdict(self.counts))


def say(message: dict[str, object]) -> None:
    """One line to the parent, if it is still there: when it is not, standard input has ended, too, and with it the service."""
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:
        # What could not be written would be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def serve(service: Service) -> None:
    """Listens until standard input ends."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(stop.set)

    # A thread, since a pipe cannot be read in the event loop on every system. It ends with its pipe; daemon only for a parent that never closes it.
    threading.Thread(target=watch, name="stdin", daemon=True).start()
    runner = web.AppRunner(service.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=512).start()
        host, port = runner.addresses[0][:2]
        say({"url": f"http://{host}:{port}"})
        await stop.wait()
    finally:
        await runner.cleanup()
    service.push()


def main() -> None:
    parser = argparse.ArgumentParser(prog="manytail.demo.service", description="The weather service of manytail's demo.")
    parser.add_argument("database", type=Path)
    parser.add_argument("--seed", type=int, default=13)
    options = parser.parse_args()
    asyncio.run(serve(Service(options.database, options.seed)))


if __name__ == "__main__":
    main()
