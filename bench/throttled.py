"""The rows of an API that refuses: a server in its own process answers so many calls a second, and refuses the others
by 429 with Retry-After: 1; each way is told to make refused and failed calls again, and is told no rate."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any
from urllib.error import HTTPError

from harness import Counted, Factory, Measure, Row
from ways import ABL, OURS, PYARALLEL, invoking

AT_ONCE, QUOTA = 64, 100  # calls at once; answers of the API in a second
BY_HAND, BY_HAND_ASYNC = "ThreadPoolExecutor.map and a loop", "semaphore, gather and a loop"
MANY = 20  # attempts; also how often async-batch-llm makes a call again that was refused
PAUSE = 1.0  # seconds before a call is made again of which the server did not say when
Fetch = Callable[[str], Any]
Way = Callable[[Sequence[str]], list[str | None]]


# ------------------------------------------------------------ results of urls in order, None for what failed for good
def ours(fetch: Fetch, urls: Sequence[str]) -> Iterator[str | None]:
    from manytail import Retry, concurrent_map

    for outcome in concurrent_map(fetch, urls, workers=AT_ONCE, retry=Retry.http(), errors="return"):
        yield None if outcome.error else outcome.result


def by_hand(fetch: Fetch, urls: Sequence[str]) -> Iterator[str | None]:
    def again(url: str) -> str:
        while True:
            try:
                return fetch(url)
            except HTTPError as error:
                time.sleep(float(error.headers.get("Retry-After", PAUSE)))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(again, urls)


def limiter() -> Any:
    """What lets the pause that a server asks for hold for all calls: a rate that none of them reaches."""
    from pyarallel import Limiter, RateLimit

    return Limiter(RateLimit(10_000))


def pyarallel(fetch: Fetch, urls: Sequence[str]) -> Iterator[str | None]:
    from pyarallel import Retry, parallel_iter

    retry = Retry.for_http(on=(HTTPError,), attempts=MANY)
    for result in parallel_iter(fetch, urls, workers=AT_ONCE, retry=retry, rate_limit=limiter(), ordered=True):
        yield result.value


async def ours_async(fetch: Fetch, urls: Sequence[str]) -> AsyncIterator[str | None]:
    from manytail import Retry, aconcurrent_map

    async for outcome in aconcurrent_map(fetch, urls, workers=AT_ONCE, retry=Retry.http(), errors="return"):
        yield None if outcome.error else outcome.result


async def by_hand_async(fetch: Fetch, urls: Sequence[str]) -> AsyncIterator[str | None]:
    import httpx

    free = asyncio.Semaphore(AT_ONCE)

    async def again(url: str) -> str:
        async with free:
            while True:
                try:
                    return await fetch(url)
                except httpx.HTTPStatusError as error:
                    await asyncio.sleep(float(error.response.headers.get("Retry-After", PAUSE)))

    for result in await asyncio.gather(*map(again, urls)):
        yield result


async def pyarallel_async(fetch: Fetch, urls: Sequence[str]) -> AsyncIterator[str | None]:
    import httpx
    from pyarallel import Retry, async_parallel_iter

    retry = Retry.for_http(on=(httpx.HTTPStatusError,), attempts=MANY)
    async for result in async_parallel_iter(
        fetch, urls, concurrency=AT_ONCE, retry=retry, rate_limit=limiter(), ordered=True
    ):
        yield result.value


async def batch_llm(fetch: Fetch, urls: Sequence[str]) -> AsyncIterator[str | None]:
    """Without its slow start, which takes a minute after each refusal and is for other quotas than this one."""
    from async_batch_llm import ProcessorConfig, process_prompts
    from async_batch_llm.core import RateLimitConfig

    config = ProcessorConfig(
        concurrency=AT_ONCE, rate_limit=RateLimitConfig(cooldown_seconds=PAUSE, slow_start_items=0)
    )
    batch = await process_prompts(invoking(fetch), urls, config=config, preserve_order=True)
    for result in batch.results:
        yield result.output


# ---------------------------------------------------------------------------------------------------------------- rows
def plain(way: Callable[[Fetch, Sequence[str]], Iterator[str | None]]) -> Way:
    def collect(urls: Sequence[str]) -> list[str | None]:
        from manytail.demo.local.job import fetch

        return list(way(fetch, urls))

    return collect


def in_loop(way: Callable[[Fetch, Sequence[str]], AsyncIterator[str | None]]) -> Way:
    async def collect(urls: Sequence[str]) -> list[str | None]:
        import httpx

        unlimited = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=unlimited, timeout=30, trust_env=False) as client:

            async def fetch(url: str) -> str:
                answer = await client.get(url)
                return answer.raise_for_status().text

            return [result async for result in way(fetch, urls)]

    return lambda urls: asyncio.run(collect(urls))


def throttled(way: Way, quota: int = QUOTA) -> Factory:
    """Seconds until all calls are done. Each measurement has a quota of its own."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        from manytail.demo.local import api

        logging.getLogger("async_batch_llm").setLevel(logging.ERROR)  # it writes a line for each refusal
        with api.serving() as server:
            runs = map(str, count())

            def measure(n: int) -> Counted:
                run = next(runs)
                urls = server.urls(run, n, quota)
                began = time.perf_counter()
                results = way(urls)
                seconds = time.perf_counter() - began
                right = [result in (f"answer {number}", None) for number, result in enumerate(results)]
                assert right == [True] * n, "wrong, doubled or out of order"
                refused = sum(event.run == run and event.status == 429 for event in server.log().events)
                return Counted(seconds, {"refused": refused, "lost": results.count(None)})

            measure(4)
            yield measure

    return contestant


WHAT = f"an API of {QUOTA} calls a second, {AT_ONCE} at once; others are refused by 429 with Retry-After: 1; in order"
ROWS = [
    Row("beside-429", f"plain functions: {WHAT}", "s", {
            OURS: throttled(plain(ours)), BY_HAND: throttled(plain(by_hand)), PYARALLEL: throttled(plain(pyarallel)),
        }, n=300, rounds=5, tiny=120),
    Row("beside-429-async", f"coroutines: {WHAT}", "s", {
            OURS: throttled(in_loop(ours_async)), BY_HAND_ASYNC: throttled(in_loop(by_hand_async)),
            PYARALLEL: throttled(in_loop(pyarallel_async)), ABL: throttled(in_loop(batch_llm)),
        }, n=300, rounds=5, tiny=120),
]  # fmt: skip
