"""concurrent_map and aconcurrent_map: results have the type that fn returns; options are checked."""

import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from typing import Any, Literal, assert_type

from manytail import Breaker, Delivery, Outcome, Retry, RetryLater, Stats, aconcurrent_map, concurrent_map


class Client:
    """A resource."""


def fetch(url: str) -> bytes:
    raise RetryLater(after=2.0)


async def afetch(url: str) -> bytes:
    return b""


def fetch_with(url: str, retries: int = 0, *, resource: Client, delivery: Delivery) -> bytes:
    return b"" if delivery.attempt > 1 else delivery.idempotency_key.encode()


async def afetch_with(url: str, *, resource: Client) -> bytes:
    return b""


class Fetcher:
    """A callable object."""

    def __call__(self, url: str) -> int:
        return 0


class AsyncFetcher:
    """One whose __call__ is async."""

    async def __call__(self, url: str) -> int:
        return 0


def nothing() -> None: ...


def host(url: str) -> str:
    return url


urls = ["https://a.example/1"]
texts: Iterator[bytes] = concurrent_map(fetch, urls)

for page in concurrent_map(fetch, urls):
    assert_type(page, bytes)
for page in concurrent_map(fetch, urls, errors="drop", workers=4, order="completion"):
    assert_type(page, bytes)
for page_or in concurrent_map(fetch, urls, errors="return"):
    assert_type(page_or, Outcome[str, bytes])
    assert_type(page_or.error, BaseException | None)
    assert_type(page_or.result, bytes | None)
    assert_type(page_or.item, str)
for page in concurrent_map(afetch, urls):
    assert_type(page, bytes)
for page_or in concurrent_map(afetch, urls, errors="return"):
    assert_type(page_or, Outcome[str, bytes])
for page in concurrent_map(fetch_with, urls, setup=Client):
    assert_type(page, bytes)
for page in concurrent_map(afetch_with, urls, setup=Client):
    assert_type(page, bytes)
for page in concurrent_map(functools.partial(fetch_with, retries=2), urls, setup=Client):
    assert_type(page, bytes)
for number in concurrent_map(lambda url: len(url), urls):
    assert_type(number, int)
for number in concurrent_map(int, urls):
    assert_type(number, int)
for number in concurrent_map(Fetcher(), urls):
    assert_type(number, int)
for number in concurrent_map(AsyncFetcher(), urls):
    assert_type(number, int)
for text in concurrent_map(str.upper, urls):
    assert_type(text, str)
with closing(concurrent_map(fetch, urls)) as pages:
    assert_type(next(pages), bytes)


def by_mode(errors: Literal["raise", "drop"]) -> None:
    for page in concurrent_map(fetch, urls, errors=errors):
        assert_type(page, bytes)


def show(progress: Stats) -> None:
    assert_type(progress.done, int)
    assert_type(progress.rate, float)


def pause(attempt: int, error: BaseException) -> float:
    return attempt * 2.0


concurrent_map(
    fetch,
    urls,
    workers=8,
    max_in_flight=100,
    order="key",
    key=host,
    per_key=2,
    weights={"a": 2},
    priority=len,
    timeout=1,
    deadline=60.0,
    retry=Retry(3, (OSError, ValueError), backoff=pause, max_backoff=10, within=60, defer=60),
    breaker=Breaker(3, when_open="fail"),
    setup=None,
    progress=show,
)
concurrent_map(fetch, urls, retry=Retry(2, lambda error: isinstance(error, OSError), backoff=0.5), progress=True)
concurrent_map(
    fetch, urls, retry=Retry(2, lambda error: RetryLater(1) if error.args else True), breaker=2, remember="a.db"
)

concurrent_map(fetch)  # error: call-overload, reportCallIssue
concurrent_map(fetch, [1, 2])  # error: arg-type, reportCallIssue, reportArgumentType
concurrent_map(nothing, urls)  # error: arg-type, reportCallIssue, reportArgumentType
concurrent_map(fetch, urls, 8)  # error: call-overload, reportCallIssue
concurrent_map(fetch, urls, worker=8)  # error: call-overload, reportCallIssue
concurrent_map(fetch, urls, workers="8")  # error: call-overload, reportCallIssue, reportArgumentType
concurrent_map(fetch, urls, errors="ignore")  # error: call-overload, reportCallIssue, reportArgumentType
concurrent_map(fetch, urls, order="any")  # error: call-overload, reportCallIssue, reportArgumentType
concurrent_map(fetch, urls, retry=OSError)  # error: call-overload, reportCallIssue, reportArgumentType
Retry(3, OSError())  # error: arg-type, reportArgumentType
Breaker(3, when_open="stop")  # error: arg-type, reportArgumentType
concurrent_map(fetch, urls, key=lambda url: url.host)  # error: attr-defined, arg-type, reportAttributeAccessIssue
concurrent_map(fetch, urls, progress=nothing)  # error: arg-type, reportCallIssue, reportArgumentType
wrong: Iterator[str] = concurrent_map(fetch, urls)  # error: arg-type, reportAssignmentType


async def numbers() -> AsyncIterator[str]:
    yield "1"


async def coroutines() -> None:
    async for page in aconcurrent_map(afetch, urls):
        assert_type(page, bytes)
    async for page in aconcurrent_map(afetch, numbers()):
        assert_type(page, bytes)
    async for page_or in aconcurrent_map(afetch, urls, errors="return"):
        assert_type(page_or, Outcome[str, bytes])
    async with aclosing(aconcurrent_map(afetch_with, urls, setup=Client)) as pages:
        assert_type(await anext(pages), bytes)
    aconcurrent_map(fetch, urls)  # error: arg-type, reportArgumentType
    aconcurrent_map(afetch, urls, worker=8)  # error: call-overload, reportCallIssue
    aconcurrent_map(afetch, urls, workers="inline")  # error: call-overload, reportArgumentType


for page_inline in concurrent_map(fetch, urls, workers="inline"):
    assert_type(page_inline, bytes)
concurrent_map(fetch, urls, workers="outline")  # error: call-overload, reportCallIssue, reportArgumentType


async def of_anything(fn: Any, items: Any) -> None:
    """What has no type makes no error."""
    for result in concurrent_map(fn, items, errors="return"):
        print(result)
