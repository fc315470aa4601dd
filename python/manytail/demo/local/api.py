"""An HTTP API on loopback, in a process of its own: it has a quota, is slow now and then, and fails now and then.

GET /<run>/<quota>/<number>   200 and an answer; 429 with Retry-After: 1 if the run's quota is used up; 503 try again

Each run has a quota of its own, so many answers within any second, as if it had an API key of its own. An answer is
paid for when it has been made, also if nobody is left to read it.
"""

import multiprocessing
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from math import log
from multiprocessing.connection import Connection
from signal import SIG_IGN, SIGINT, signal
from socketserver import ThreadingTCPServer
from statistics import NormalDist
from typing import Any, NamedTuple

from manytail._sync import Held

QUOTA, RETRY_AFTER = 100, 1  # answers within a second, where nothing is said; seconds
MEDIAN, SLOW, LONGEST = 0.04, 0.5, 1.0  # seconds; one call in fifty takes SLOW or more
SPREAD = log(SLOW / MEDIAN) / NormalDist().inv_cdf(0.98)
FAILING = 0.04  # of all numbers: their first call fails


class Event(NamedTuple):
    """A request that was answered."""

    came: float  # seconds of the API's clock
    done: float
    run: str
    number: int
    status: int


class Log(NamedTuple):
    now: float
    open: int  # requests that are being answered
    events: list[Event]


def temper(number: int) -> tuple[float, bool]:
    """How long a call takes, and whether the first one fails: the same in every run."""
    chance = random.Random(number)
    return min(chance.lognormvariate(log(MEDIAN), SPREAD), LONGEST), chance.random() < FAILING


class Server(ThreadingTCPServer):
    """Not HTTPServer, which looks up a name for the address; that takes seconds on some machines."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.events: list[Event] = []
        self.open = 0
        self._lock = threading.Lock()
        self._within: defaultdict[str, deque[float]] = defaultdict(deque)  # when the answers of the last second began
        self._seen: set[tuple[str, int]] = set()  # calls that were let in once

    def let_in(self, run: str, quota: int, number: int) -> tuple[int, float]:
        """Status and latency of the answer to a request that comes now."""
        with Held(self._lock):
            now, within = time.monotonic(), self._within[run]
            while within and within[0] <= now - 1:
                within.popleft()
            self.open += 1
            if len(within) >= quota:
                return 429, 0.0
            within.append(now)
            latency, fails = temper(number)
            first = (run, number) not in self._seen
            self._seen.add((run, number))
            return (503 if fails and first else 200), latency

    def answered(self, came: float, run: str, number: int, status: int) -> None:
        with Held(self._lock):
            self.open -= 1
            self.events.append(Event(came, time.monotonic(), run, number, status))

    def log(self) -> Log:
        with Held(self._lock):
            return Log(time.monotonic(), self.open, self.events[:])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a client that was killed does not read its answers."""


class Handler(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True  # else the second packet of an answer waits for the client's delayed ACK
    server: Any  # a Server

    def do_GET(self) -> None:
        came = time.monotonic()
        _, run, quota, number = self.path.split("/")
        status, latency = self.server.let_in(run, int(quota), int(number))
        time.sleep(latency)
        self.server.answered(came, run, int(number), status)
        body = f"answer {number}".encode()
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", str(RETRY_AFTER))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


def serve(pipe: Connection) -> None:
    """The process of the API: says its port, then its log whenever it is asked, until the other end is closed."""
    signal(SIGINT, SIG_IGN)  # Ctrl-C is for the demo, which then closes the pipe
    with Server() as server, ThreadPoolExecutor(1) as thread:
        thread.submit(server.serve_forever, 0.05)
        try:
            pipe.send(server.server_address[1])
            while pipe.recv():
                pipe.send(server.log())
        except (EOFError, OSError):
            pass  # the demo has closed the pipe, or has ended
        finally:
            server.shutdown()


class Api:
    """The API, seen from the demo."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.url = f"http://127.0.0.1:{pipe.recv()}"

    def urls(self, run: str, items: int, quota: int = QUOTA) -> list[str]:
        return [f"{self.url}/{run}/{quota}/{number}" for number in range(items)]

    def log(self) -> Log:
        self._pipe.send(True)
        found: Log = self._pipe.recv()
        return found


@contextmanager
def serving() -> Iterator[Api]:
    """The API answers inside the block."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # so that the end of one process is the end of the pipe for the other one
    try:
        yield Api(ours)
    finally:
        ours.close()
        process.join()
