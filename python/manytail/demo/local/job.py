"""What a user writes: one call, a pool of threads that makes many of them, and a map that does."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from manytail import Rate, Results, Retry, concurrent_map

WORKERS = 64
PART = 0.9  # of what the API allows

client = build_opener(ProxyHandler({}))  # the API is on this machine


def fetch(url: str) -> str:
    """One call: its answer, or the error that urllib raises."""
    with client.open(url, timeout=30) as answer:
        return str(answer.read(), "ascii")


def pool(urls: Sequence[str]) -> list[str | None]:
    """The usual way: a pool of threads, and nothing else. None stands for a result that was lost."""
    with ThreadPoolExecutor(WORKERS) as threads:
        calls = [threads.submit(fetch, url) for url in urls]
    return [None if call.exception() else call.result() for call in calls]


def mapped(urls: Sequence[str], quota: int, remember: Path | None = None) -> Results[str]:
    """With manytail: within the quota, again after a failure, and what is remembered is not called again."""
    return concurrent_map(
        fetch, urls, workers=WORKERS, limits=Rate(PART * quota), retry=Retry.http(), remember=remember,
    )  # fmt: skip
