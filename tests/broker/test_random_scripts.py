"""Random operations on two sides at once: a state machine makes the same calls on manytail.broker and on a server, and
compares all visible results.

It compares the answers of every call, the deliveries of every consumer in order, redelivered flags, counts, reply codes
and dead letters. Every asynchronous call is settled before the next one. A server is free in which of several waiting
queues, or consumers of equal rank, it serves first. So a queue has one consumer here, and a channel one limit per
consumer.
Without a server the machine compares two brokers of ours: one with a single worker, one with four.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.counts import count

from broker import sides

REPLIES = "amq.rabbitmq.reply-to"
KEYS = ["a", "b", "a.b", "a.b.c", ""]
PATTERNS = ["a", "b", "a.*", "#", "*.b", "a.#", ""]
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"x-max-length": 2},
    {"x-max-length": 1, "x-overflow": "reject-publish"},
    {"x-max-priority": 2},
]


class Half:
    """One side's channel, queues and consumers, by number instead of by name."""

    def __init__(self, side: sides.Side) -> None:
        self.side = side
        self.names: dict[str, str] = {}
        self.consumers: dict[str, sides.Recorder] = {}
        self.open()

    def open(self) -> None:
        self.channel = self.side.channel()
        self.consumers = {}  # by the queue; REPLIES: of replies

    def name(self, label: str) -> str:
        return self.names.setdefault(label, self.side.unique(label[0]))

    def label(self, name: str) -> str:
        return next((label for label, known in self.names.items() if known == name), name)

    def do(self, call: Any) -> Any:
        """The answer, or the reply code. A channel that is lost is opened again, without its consumers."""
        try:
            answer = call(self)
            self.side.fence(self.channel)
            self.side.settle()
        except (self.side.exceptions.UnroutableError, self.side.exceptions.NackError) as error:
            self.side.settle()
            return type(error).__name__
        except Exception as error:
            code = getattr(error, "reply_code", None)
            if code is None:
                raise
            self.open()
            self.side.settle()
            return code
        return answer

    def seen(self) -> Any:
        """All deliveries to consumers."""
        return {
            queue: [
                (
                    method.delivery_tag, method.redelivered, self.label(method.exchange), method.routing_key in KEYS,
                    body, self.deaths(properties), bool(properties.reply_to),
                )
                for method, properties, body in recorder.deliveries
            ]
            for queue, recorder in self.consumers.items()
        }  # fmt: skip

    def deaths(self, properties: Any) -> Any:
        listed = (properties.headers or {}).get("x-death") or []
        return [
            (self.label(death["queue"]), death["reason"], int(death["count"]), self.label(death["exchange"]))
            for death in listed
        ]


class Comparison(RuleBasedStateMachine):
    """Queues q0 to q2 of drawn arguments, whose dead letters go to queue d; exchanges of three types."""

    make: Any = staticmethod(lambda: (sides.Manytail(), sides.Manytail()))

    def __init__(self) -> None:
        super().__init__()
        self.halves = [Half(side) for side in type(self).make()]
        self.tags = 0
        self.queues_there = ["q0", "q1", "q2", "d"]

    def both(self, call: Any) -> Any:
        first, second = (half.do(call) for half in self.halves)
        assert first == second
        return first

    @initialize(kinds=st.lists(st.sampled_from(ARGUMENTS), min_size=3, max_size=3))
    def declare(self, kinds: list[dict[str, Any]]) -> None:
        def call(half: Half) -> None:
            half.side.queue(half.channel, half.name("d"))
            for index, arguments in enumerate(kinds):
                dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": half.name("d")}
                half.side.queue(half.channel, half.name(f"q{index}"), arguments=arguments | dead)
            for kind in ("direct", "fanout", "topic"):
                half.side.exchange(half.channel, kind, half.name(f"x{kind}"))

        self.both(call)

    queues = st.sampled_from(["q0", "q1", "q2"])
    exchanges = st.sampled_from(["xdirect", "xfanout", "xtopic"])

    @rule(queue=queues, exchange=exchanges, pattern=st.sampled_from(PATTERNS), bind=st.booleans())
    def bind(self, queue: str, exchange: str, pattern: str, bind: bool) -> None:
        def call(half: Half) -> None:
            getattr(half.channel, "queue_bind" if bind else "queue_unbind")(
                half.name(queue), half.name(exchange), pattern
            )

        self.both(call)

    @rule(
        exchange=exchanges,
        key=st.sampled_from(KEYS),
        body=st.integers(0, 99),
        priority=st.sampled_from([None, 0, 1, 2, 9]),
    )
    def publish(self, exchange: str, key: str, body: int, priority: int | None) -> None:
        self.both(
            lambda half: half.side.publish(half.channel, key, body, exchange=half.name(exchange), priority=priority)
        )

    @rule(queue=queues, body=st.integers(100, 199), expire=st.booleans())
    def publish_to_queue(self, queue: str, body: int, expire: bool) -> None:
        """Expiration 0: both sides expire it at the same time."""
        more = {"expiration": "0"} if expire else {}
        self.both(lambda half: half.side.publish(half.channel, half.name(queue), body, message_id="1", **more))

    @rule(queue=st.sampled_from(["q0", "q1", "q2", "d"]), auto_ack=st.booleans())
    def get(self, queue: str, auto_ack: bool) -> None:
        def call(half: Half) -> Any:
            method, properties, body = half.channel.basic_get(half.name(queue), auto_ack)
            return method and (
                method.delivery_tag,
                method.redelivered,
                method.message_count,
                body,
                half.deaths(properties),
            )

        got = self.both(call)
        if isinstance(got, tuple):
            self.tags = got[0]

    @rule(queue=queues, auto_ack=st.booleans(), prefetch=st.integers(0, 3))
    def consume(self, queue: str, auto_ack: bool, prefetch: int) -> None:
        def call(half: Half) -> bool:
            if queue in half.consumers:
                return False
            half.channel.basic_qos(prefetch_count=prefetch)
            half.consumers[queue] = half.side.consume(half.channel, half.name(queue), auto_ack=auto_ack)
            return True

        self.both(call)

    @rule(queue=queues)
    def ask(self, queue: str) -> None:
        """Publish a request for a direct reply. Without a consumer of replies it is refused, one time in two."""

        def call(half: Half) -> None:
            if REPLIES not in half.consumers and self.tags % 2:
                half.consumers[REPLIES] = half.side.consume(half.channel, REPLIES, auto_ack=True)
            half.side.publish(half.channel, half.name(queue), "request", reply_to=REPLIES)

        self.both(call)

    @rule(queue=queues, mandatory=st.booleans())
    def answer(self, queue: str, mandatory: bool) -> None:
        def call(half: Half) -> Any:
            method, properties, body = half.channel.basic_get(half.name(queue), True)
            if method is not None and properties.reply_to:
                half.side.publish(half.channel, properties.reply_to, body + b"?", mandatory=mandatory)
            return method and (method.delivery_tag, body)

        self.both(call)

    @rule(confirms=st.booleans())
    def select(self, confirms: bool) -> None:
        """Turn on confirms, or transactions."""
        self.both(lambda half: half.channel.confirm_delivery() if confirms else half.channel.tx_select() and None)

    @rule(commit=st.booleans())
    def end_transaction(self, commit: bool) -> None:
        self.both(lambda half: (half.channel.tx_commit() if commit else half.channel.tx_rollback()) and None)

    @rule(queue=queues)
    def exclude(self, queue: str) -> None:
        """Consume exclusively, where that is possible. Then no other consumer is."""

        def call(half: Half) -> Any:
            if queue in half.consumers:
                return half.side.code(lambda channel: channel.basic_consume(half.name(queue), print, exclusive=True))
            half.consumers[queue] = half.side.consume(half.channel, half.name(queue), exclusive=True)
            return half.side.code(lambda channel: channel.basic_consume(half.name(queue), print))

        self.both(call)

    @rule(queue=queues, if_unused=st.booleans(), if_empty=st.booleans())
    def delete(self, queue: str, if_unused: bool, if_empty: bool) -> None:
        def call(half: Half) -> int:
            count: int = half.channel.queue_delete(half.name(queue), if_unused, if_empty).method.message_count
            half.consumers.pop(queue, None)
            return count

        if self.both(call) != 406 and queue in self.queues_there:
            self.queues_there.remove(queue)

    @rule(queue=queues, kind=st.sampled_from(ARGUMENTS))
    def declare_again(self, queue: str, kind: dict[str, Any]) -> None:
        def call(half: Half) -> None:
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": half.name("d")}
            half.side.queue(half.channel, half.name(queue), arguments=kind | dead)

        if self.both(call) is None and queue not in self.queues_there:
            self.queues_there.append(queue)

    @rule(queue=queues)
    def cancel(self, queue: str) -> None:
        def call(half: Half) -> Any:
            recorder = half.consumers.pop(queue, None)
            return recorder and list(half.channel.basic_cancel(recorder.tag))

        self.both(call)

    @rule(
        how=st.sampled_from(["ack", "nack", "drop", "reject"]),
        back=st.integers(0, 4),
        multiple=st.booleans(),
    )
    def settle(self, how: str, back: int, multiple: bool) -> None:
        def call(half: Half) -> None:
            tags = [self.tags, *(tag for recorder in half.consumers.values() for tag in recorder.tags)]
            tag = max(0, max(tags) - back)
            if how == "ack":
                half.channel.basic_ack(tag, multiple)
            elif how == "reject":
                half.channel.basic_reject(tag, requeue=multiple)
            else:
                half.channel.basic_nack(tag, multiple, requeue=how == "nack")

        if isinstance(self.both(call), int):
            self.tags = 0

    @rule()
    def recover(self) -> None:
        self.both(lambda half: half.channel.basic_recover(requeue=True))

    @rule(queue=st.sampled_from(["q0", "q1", "q2", "d"]))
    def purge(self, queue: str) -> None:
        self.both(lambda half: half.channel.queue_purge(half.name(queue)).method.message_count)

    @rule()
    def reopen(self) -> None:
        def call(half: Half) -> None:
            half.channel.close()
            half.open()

        self.both(call)
        self.tags = 0

    @invariant()
    def the_same_is_seen(self) -> None:
        first, second = (half.seen() for half in self.halves)
        assert first == second
        if all("d" in half.names for half in self.halves):
            first, second = (
                [
                    tuple(vars_of(half.channel.queue_declare(half.name(queue), passive=True).method))
                    for queue in self.queues_there
                ]
                for half in self.halves
            )
            assert first == second

    def teardown(self) -> None:
        for half in self.halves:
            half.side.end()


def vars_of(answer: Any) -> tuple[int, int]:
    return answer.message_count, answer.consumer_count


def run(make: Any, examples: int, steps: int) -> None:
    machine = type("Machine", (Comparison,), {"make": staticmethod(make)})
    checks = list(HealthCheck)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=checks, database=None
        ),
    )


def test_two_of_ours_agree() -> None:
    """However the threads are scheduled."""

    def make() -> tuple[sides.Side, sides.Side]:
        one, many = sides.Manytail(), sides.Manytail()
        one.executor.shutdown()
        one.executor = sides.CountingExecutor(1)
        return one, many

    run(make, examples=count(25, 1000, "MANYTAIL_SCRIPTS"), steps=30)


if sides.SERVER:

    @pytest.mark.rabbitmq
    def test_a_server_agrees() -> None:
        run(lambda: (sides.Manytail(), sides.Server()), examples=count(15, 1000, "MANYTAIL_SCRIPTS"), steps=20)
