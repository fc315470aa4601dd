"""Ways to make many slow calls: ours, the standard library's and those of other packages, each as its documentation
has it. All of them get the same function, the same items and the same number of calls at once.

A way of plain functions is a generator of results, one of coroutines an asynchronous generator. Ways import what they
need when they begin: ModuleNotFoundError says what is not installed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from harness import Unavailable

OURS, POOL_MAP, BUFFERED = "ours", "ThreadPoolExecutor.map", "map(buffersize)"
PYARALLEL, JOBLIB = "pyarallel", "joblib threads"
GATHER, AIOMETER, ABL = "semaphore and gather", "aiometer", "async-batch-llm"

Call = Callable[[Any], Any]
Way = Callable[[Call, Sequence[Any], int], Iterator[Any]]
AsyncCall = Callable[[Any], Awaitable[Any]]
AsyncWay = Callable[[AsyncCall, Sequence[Any], int], AsyncIterator[Any]]


# ------------------------------------------------------------------------------------------- plain functions, in order
def ours(call: Call, items: Sequence[Any], at_once: int) -> Iterator[Any]:
    from manytail import concurrent_map

    return concurrent_map(call, items, workers=at_once)


def pool_map(call: Call, items: Sequence[Any], at_once: int) -> Iterator[Any]:
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(call, items)


def buffered(call: Call, items: Sequence[Any], at_once: int) -> Iterator[Any]:
    """Twice as many items submitted and not yet taken as calls at once: as pyarallel has it where nothing is said."""
    if sys.version_info < (3, 14):
        raise Unavailable("skipped: buffersize needs CPython 3.14")
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(call, items, buffersize=2 * at_once)


def pyarallel(call: Call, items: Sequence[Any], at_once: int) -> Iterator[Any]:
    from pyarallel import parallel_iter

    for result in parallel_iter(call, items, workers=at_once, ordered=True):
        if result.error:
            raise result.error
        yield result.value


def joblib(call: Call, items: Sequence[Any], at_once: int) -> Iterator[Any]:
    from joblib import Parallel, delayed

    return Parallel(at_once, backend="threading", return_as="generator")(delayed(call)(item) for item in items)


# ----------------------------------------------------------------------------------------------- coroutines, in order
def ours_async(call: AsyncCall, items: Sequence[Any], at_once: int) -> AsyncIterator[Any]:
    from manytail import aconcurrent_map

    return aconcurrent_map(call, items, workers=at_once)


async def gathered(call: AsyncCall, items: Sequence[Any], at_once: int) -> AsyncIterator[Any]:
    free = asyncio.Semaphore(at_once)

    async def limited(item: Any) -> Any:
        async with free:
            return await call(item)

    for result in await asyncio.gather(*map(limited, items)):
        yield result


async def aiometer(call: AsyncCall, items: Sequence[Any], at_once: int) -> AsyncIterator[Any]:
    from aiometer import run_all

    for result in await run_all([partial(call, item) for item in items], max_at_once=at_once):
        yield result


async def pyarallel_async(call: AsyncCall, items: Sequence[Any], at_once: int) -> AsyncIterator[Any]:
    from pyarallel import async_parallel_iter

    async for result in async_parallel_iter(call, items, concurrency=at_once, ordered=True):
        if result.error:
            raise result.error
        yield result.value


def invoking(call: AsyncCall) -> Any:
    """What async-batch-llm calls. Its items are strings: ours are made of them again, as their own text says."""
    from async_batch_llm import CallableStrategy, CallOutcome

    async def invoke(prompt: str, *, attempt: int, timeout: float, state: Any) -> Any:
        return CallOutcome(await call(prompt))

    return CallableStrategy(invoke)


async def batch_llm(call: AsyncCall, items: Sequence[Any], at_once: int) -> AsyncIterator[Any]:
    from async_batch_llm import ProcessorConfig, process_prompts

    kind = type(items[0])
    strategy = invoking(lambda prompt: call(kind(prompt)))
    config = ProcessorConfig(concurrency=at_once)
    batch = await process_prompts(strategy, map(str, items), config=config, preserve_order=True)
    for result in batch.results:
        if result.error:
            raise RuntimeError(result.error)
        yield result.output


# ------------------------------------------------------------------- coroutines, as they end: what is made for streams
async def aiometer_stream(call: AsyncCall, items: Sequence[Any], at_once: int) -> AsyncIterator[Any]:
    from aiometer import amap

    async with amap(call, items, max_at_once=at_once) as results:
        async for result in results:
            yield result


async def batch_llm_stream(call: AsyncCall, items: Sequence[Any], at_once: int) -> AsyncIterator[Any]:
    """With bounded queues, as its documentation says for long inputs."""
    from async_batch_llm import ProcessorConfig, process_stream

    kind = type(items[0])
    strategy = invoking(lambda prompt: call(kind(prompt)))
    config = ProcessorConfig(concurrency=at_once, max_queue_size=2 * at_once, max_result_queue_size=2 * at_once)
    async for result in process_stream(strategy, map(str, items), config=config):
        if result.error:
            raise RuntimeError(result.error)
        yield result.output


WAYS: dict[str, Way] = {
    OURS: ours, POOL_MAP: pool_map, BUFFERED: buffered, PYARALLEL: pyarallel, JOBLIB: joblib,
}  # fmt: skip
ASYNC_WAYS: dict[str, AsyncWay] = {
    OURS: ours_async, GATHER: gathered, AIOMETER: aiometer, PYARALLEL: pyarallel_async, ABL: batch_llm,
}  # fmt: skip
STREAMS = ASYNC_WAYS | {AIOMETER: aiometer_stream, ABL: batch_llm_stream}
