"""A broker whose calls are interrupted by a handler that raises, beside a thread that uses the same queue.

A message is published, or not, or nobody knows because the call was interrupted. The same holds for its settlement. At
the end all channels are closed, and what is left agrees with what is known, and with the queue's own count.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from support.threads import Threads, wait_until

from manytail.broker import Broker
from manytail.broker.exceptions import ChannelWrongStateError

from .interrupts import Interrupt, Interrupted

QUEUE = "queue"


def made(call: Callable[[], Any], results: list[Any]) -> None:
    """Make the call, with its result in the list whatever a handler raises after it."""
    results.extend(map(operator.call, (call,)))


class User:
    """One thread's use of the queue."""

    def __init__(self, connection: Any, name: str) -> None:
        self.connection = connection
        self.name = name
        self.made = 0
        self.published: set[bytes] = set()
        self.perhaps_published: set[bytes] = set()
        self.settled: set[bytes] = set()
        self.perhaps_settled: set[bytes] = set()
        self.held: dict[int, bytes] = {}  # deliveries by tag
        self.open()

    def open(self) -> None:
        self.channel = self.connection.channel()
        self.transactional = False
        self.held.clear()

    def step(self, random: Random, attempt: Callable[[Callable[[], Any]], list[Any]]) -> None:
        """One call. attempt: makes it; [] if it was interrupted."""
        channel, chance = self.channel, random.random()
        tag = random.choice(list(self.held)) if self.held else 0
        if chance < 0.4:
            self.made += 1
            body = f"{self.name} {self.made}".encode()
            done = attempt(partial(channel.basic_publish, "", QUEUE, body))
            (self.published if done else self.perhaps_published).add(body)
        elif chance < 0.65 or (chance < 0.9 and not tag):
            for method, _, body in attempt(partial(channel.basic_get, QUEUE)):
                if method is not None:
                    self.held[method.delivery_tag] = body
        elif chance < 0.8:
            done = attempt(partial(channel.basic_ack, tag))
            (self.settled if done else self.perhaps_settled).add(self.held.pop(tag))
        elif chance < 0.9:
            refuse = random.choice([channel.basic_nack, channel.basic_reject])
            attempt(partial(refuse, tag, requeue=True))
            del self.held[tag]
        elif chance < 0.95:
            callback = partial(self.consumed, random.random() < 0.5)
            attempt(partial(channel.basic_consume, QUEUE, callback, consumer_tag=self.name))
            attempt(partial(channel.basic_cancel, self.name))
            channel.basic_cancel(self.name)  # unless one of the two was interrupted, it is not there
        elif chance < 0.97:
            attempt(channel.close)
            if channel.is_open:
                channel.close()
            self.open()

    def consumed(self, acknowledges: bool, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """Called in a thread of the connection's pool."""
        with contextlib.suppress(ChannelWrongStateError):  # it may have been closed meanwhile
            if acknowledges:
                self.perhaps_settled.add(body)
                channel.basic_ack(method.delivery_tag)
            else:
                channel.basic_reject(method.delivery_tag, requeue=True)


def run(random: Random, steps: int, delay: float) -> None:
    with Broker() as broker, broker.connect() as connection, broker.connect() as other:
        connection.channel().queue_declare(QUEUE)
        users = [User(connection, "main"), User(other, "beside")]
        interrupted = Interrupted(made.__code__)

        def stop() -> None:
            raise Interrupt

        def attempt(call: Callable[[], Any]) -> list[Any]:
            results: list[Any] = []
            interrupted.after(random.choice([random.uniform(1e-6, 60e-6), random.expovariate(1 / delay)]), stop)
            with contextlib.suppress(Interrupt):
                made(call, results)
            interrupted.cancel()
            return results

        def undisturbed(call: Callable[[], Any]) -> list[Any]:
            return [call()]

        def beside(seed: int) -> None:
            own = Random(seed)
            for _ in range(steps):
                users[1].step(own, undisturbed)

        with Threads() as threads:
            if random.random() < 0.5:
                threads.start(beside, random.randrange(10**9))
            with interrupted:
                for _ in range(steps * 3):
                    users[0].step(random, attempt)
        check(connection, users)


def check(connection: Any, users: list[User]) -> None:
    for user in users:
        user.channel.close()
    channel = connection.channel()
    published, settled = set[bytes]().union(*[user.published for user in users]), set[bytes]()
    perhaps_published, perhaps_settled = set[bytes](), set[bytes]()
    for user in users:
        settled |= user.settled
        perhaps_published |= user.perhaps_published
        perhaps_settled |= user.perhaps_settled
    count = channel.queue_declare(QUEUE, passive=True).method.message_count
    left: list[bytes] = []
    wait_until(lambda: (got := channel.basic_get(QUEUE, auto_ack=True))[0] is None or left.append(got[2]))
    assert count == len(left), f"the queue counts {count} messages and has {len(left)}"
    assert len(left) == len(set(left)), "messages are doubled"
    lost = published - settled - perhaps_settled - set(left)
    assert not lost, f"lost: {sorted(lost)[:9]}"
    more = set(left) - ((published | perhaps_published) - settled)
    assert not more, f"never published, or settled: {sorted(more)[:9]}"
