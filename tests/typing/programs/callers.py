"""Caller and AsyncCaller: the types of item and result are those of fn; options are checked."""

from concurrent.futures import Future
from typing import assert_type

from manytail import AsyncCaller, Batch, Caller, Rate, Retry, Stats


class Client:
    """A resource."""


def fetch(url: str) -> bytes:
    return b""


async def afetch(url: str) -> bytes:
    return b""


def fetch_with(url: str, retries: int = 0, *, resource: Client) -> bytes:
    return b""


def fetch_all(urls: list[str]) -> list[bytes]:
    return []


async def afetch_all(urls: list[str]) -> list[bytes]:
    return []


assert_type(Caller(fetch), Caller[str, bytes])
assert_type(Caller(afetch), Caller[str, bytes])
assert_type(Caller(fetch_with, setup=Client), Caller[str, bytes])
assert_type(Caller(fetch_all, batch=32), Caller[str, bytes])
assert_type(Caller(afetch_all, batch=Batch(32, linger=0.01)), Caller[str, bytes])
assert_type(AsyncCaller(afetch), AsyncCaller[str, bytes])
assert_type(AsyncCaller(afetch_all, batch=32), AsyncCaller[str, bytes])

with Caller(fetch, key=lambda url: url[0], per_key=2, limits=Rate(5), retry=Retry(3), max_in_flight=100) as caller:
    assert_type(caller("a"), bytes)
    assert_type(caller.submit("a"), Future[bytes])
    assert_type(caller.stats(), Stats)
    caller(1)  # error: arg-type, reportArgumentType
caller.close(cancel=True)


async def main() -> None:
    async with AsyncCaller(afetch, dedup=3) as call:
        assert_type(await call("a"), bytes)
        assert_type(call.stats(), Stats)
        await call(1)  # error: arg-type, reportArgumentType
    await call.aclose(cancel=True)


AsyncCaller(fetch)  # error: arg-type, reportArgumentType
Caller(fetch, order="input")  # error: call-overload, reportCallIssue
Caller(fetch, workers="inline")  # error: call-overload, reportCallIssue, reportArgumentType
