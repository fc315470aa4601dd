"""The paid service: HTTP on loopback, in a process of its own, that outlives the job when that is killed.

GET /installation/<package>  200 {"packages", "bytes"}: what an installation downloads, the package and all that it
                             depends on. Each such answer is billed: 1 credit, and 1 for each dependency of the package.
                             422: no package of the index meets a dependency. 404: no such package. Neither is billed.
                             429 with Retry-After: more calls than `rate` in this second; or the service is busy, which
                             each `busy`-th call finds. Not billed.
POST /runs                   {"pid", "kill_at"}: a run of the job begins. When it has been billed `kill_at` calls, its
                             processes are killed with SIGKILL, in the middle of the call that was counted last.
GET /log                     every call: time, run, package, status; and what was in flight at the kill.

It counts calls and reads no clock to decide when to kill. It ends when its standard input does.
"""

import argparse
import asyncio
import sys
import time
from typing import Any

import psutil
import pyarrow.parquet as pq
from aiohttp import web

LATENCY = 0.05  # seconds that an answer takes


class Service:
    """Only the event loop changes it, so it needs no lock."""

    def __init__(self, packages: list[dict[str, Any]], rate: int, busy: int) -> None:
        self._packages = {row["package"]: row for row in packages}
        self._providers = {name: row["package"] for row in packages for name in row["provides"]}
        self._rate, self._busy = rate, busy
        self._second, self._in_second, self._calls = 0, 0, 0
        self._run, self._pid, self._billed, self._kill_at = 0, 0, 0, 0
        self._open: set[str] = set()
        self._log: list[tuple[float, int, str, int]] = []
        self._killed: dict[str, Any] | None = None

    async def installation(self, request: web.Request) -> web.Response:
        package, now = request.match_info["package"], time.time()
        status, answer = (429, "busy") if self._refuses(int(now)) else self._installation(package)
        self._log.append((now, self._run, package, status))
        if status == 429:
            return web.Response(status=429, headers={"Retry-After": "1"})
        self._open.add(package)
        if status == 200:
            self._billed += 1
            if self._kill_at and self._billed >= self._kill_at:
                self._kill(now)
        await asyncio.sleep(LATENCY)
        self._open.discard(package)
        return web.json_response(answer, status=status)

    def _refuses(self, second: int) -> bool:
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        self._calls += 1
        return self._in_second > self._rate or self._calls % self._busy == 0

    def _installation(self, package: str) -> tuple[int, object]:
        """The first alternative of each dependency that is a package, or that a package provides."""
        if package not in self._packages:
            return 404, "no such package"
        found, waiting = {package}, [package]
        while waiting:
            for group in self._packages[waiting.pop()]["depends"]:
                one = next((self._meets(name) for name in group if self._meets(name)), None)
                if one is None:
                    return 422, f"no package of the index is {' or '.join(group)}"
                if one not in found:
                    found.add(one)
                    waiting.append(one)
        return 200, {"packages": len(found), "bytes": sum(self._packages[name]["size"] for name in found)}

    def _meets(self, name: str) -> str | None:
        return name if name in self._packages else self._providers.get(name)

    def _kill(self, now: float) -> None:
        """Kill the run: the driver, its JVM and their Python workers. No call is answered before all are dead."""
        self._kill_at = 0
        self._killed = {"time": now, "in_flight": sorted(self._open)}
        driver = psutil.Process(self._pid)
        for process in (driver, *driver.children(recursive=True)):
            process.kill()

    async def begin(self, request: web.Request) -> web.Response:
        run = await request.json()
        self._run, self._pid, self._kill_at, self._billed = self._run + 1, run["pid"], run["kill_at"], 0
        return web.Response()

    async def log(self, _: web.Request) -> web.Response:
        return web.json_response({"calls": self._log, "killed": self._killed})


async def serve(service: Service) -> None:
    app = web.Application()
    app.router.add_get("/installation/{package}", service.installation)
    app.router.add_post("/runs", service.begin)
    app.router.add_get("/log", service.log)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("index", help="the package index, as Parquet")
    parser.add_argument("--rate", type=int, required=True, help="calls per second that it takes")
    parser.add_argument("--busy", type=int, required=True, help="each call of that number finds it busy")
    options = parser.parse_args()
    asyncio.run(serve(Service(pq.read_table(options.index).to_pylist(), options.rate, options.busy)))
