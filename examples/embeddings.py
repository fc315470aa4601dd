"""An aiohttp server whose handlers embed texts, each handler one; an AsyncCaller asks the model for many at once.

    python examples/embeddings.py [requests] [clients]

In this process run a model server, whose request takes 10 ms and 0.1 ms for each text, one after the other, as on one
GPU; the service; and a load generator. It prints the throughput with and without batches.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import ClientSession, web

from manytail import AsyncCaller, Batch

Embed = Callable[[list[str]], Awaitable[list[list[float]]]]


@asynccontextmanager
async def serving(path: str, handler: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """A server at a free port. Its URL."""
    app = web.Application()
    app.router.add_post(path, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
    finally:
        await runner.cleanup()


def model() -> Callable[[web.Request], Awaitable[web.Response]]:
    gpu = asyncio.Lock()

    async def handler(request: web.Request) -> web.Response:
        texts = await request.json()
        async with gpu:
            await asyncio.sleep(0.010 + 0.0001 * len(texts))
        return web.json_response([[len(text), text.count("e")] for text in texts])

    return handler


@asynccontextmanager
async def service(url: str, batch: Batch) -> AsyncIterator[tuple[str, AsyncCaller[str, list[float]]]]:
    """The service, which asks the model at `url`."""
    async with ClientSession() as session:

        async def embed(texts: list[str]) -> list[list[float]]:
            async with session.post(url, json=texts) as answer:
                vectors: list[list[float]] = await answer.json()
                return vectors

        async with AsyncCaller(embed, batch=batch, workers=2) as embed_one:

            async def handler(request: web.Request) -> web.Response:
                return web.json_response(await embed_one(await request.text()))

            async with serving("/embed", handler) as at:
                yield at, embed_one


async def load(url: str, requests: int, clients: int) -> float:
    """Requests per second of so many clients, each with one request at a time."""
    left = iter(range(requests))

    async def client(session: ClientSession) -> None:
        for number in left:
            async with session.post(url, data="e" * (number % 50)) as answer:
                assert await answer.json() == [number % 50, number % 50]

    began = time.perf_counter()
    async with ClientSession() as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return requests / (time.perf_counter() - began)


async def main(requests: int = 2_000, clients: int = 64) -> None:
    async with serving("/model", model()) as url:
        for what, batch, share in (("one text", Batch(1), 8), ("up to 32 texts", Batch(32, linger=0.005), 1)):
            async with service(url, batch) as (at, embed_one):
                rate = await load(at, requests // share, clients)
                mean = embed_one.stats().done / embed_one.stats().calls
            print(f"{what} in a request to the model: {rate:.0f} texts/s, {mean:.1f} texts in a request")


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
