"""PubSubQueue against a sequential model: hypothesis draws any calls; every answer must be the model's."""
from queue import Empty, Full

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.counts import count

from manytail import Lagged, PubSubQueue, ShutDown

NAMES = range(6)
sizes = st.sampled_from([0, 0, 1, 3, 20])
counts = st.sampled_from([-1, 0, 1, 2, 5, 60, 1000])
batches = st.sampled_from([0, 1, 2, 3, 8, 11, 60, 300])


class Model:
    """A log of all messages, and the position of each subscriber in it."""

    def __init__(self, maxsize, slow):
        self.log, self.places, self.missed, self.dropped = [], {}, {}, 0
        self.maxsize, self.slow, self.down = maxsize, slow, False

    @property
    def oldest(self):
        return min(self.places.values(), default=len(self.log))

    def publish(self, item):
        if self.down:
            return ShutDown
        if self.places and 0 < self.maxsize <= len(self.log) - self.oldest:
            if self.slow != "drop_oldest":
                return Full
            to = len(self.log) + 1 - self.maxsize
            for name, place in self.places.items():
                if place < to:
                    self.missed[name] += to - place
                    self.dropped += to - place
                    self.places[name] = to
        self.log.append(item)
        return None

    def take(self, name, n):
        """The messages, or the exception that is raised."""
        if self.missed[name]:
            missed, self.missed[name] = self.missed[name], 0
            return Lagged(missed)
        place = self.places[name]
        taken = self.log[place:place + n]
        self.places[name] = place + len(taken)
        return taken or (ShutDown if self.down else Empty)


class Machine(RuleBasedStateMachine):
    slow = "raise"

    def __init__(self):
        super().__init__()
        self.subscribers = {}
        self.next = 0

    @initialize(maxsize=sizes)
    def begin(self, maxsize):
        self.queue = PubSubQueue(maxsize=maxsize, slow=self.slow)
        self.model = Model(maxsize, self.slow)

    def teardown(self):
        for subscriber in self.subscribers.values():
            subscriber.close()
        assert self.queue.qsize() == 0

    # ---------------------------------------------------------------- publishing
    @rule()
    def publish(self):
        item, self.next = self.next, self.next + 1
        refused = self.model.publish(item)
        if refused:
            with pytest.raises(refused):
                self.queue.publish(item, block=False)
        else:
            assert self.queue.publish(item) == len(self.model.log) - 1

    @rule(n=batches, kind=st.sampled_from([list, iter]))
    def publish_many(self, n, kind):
        items = list(range(self.next, self.next + n))
        self.next += n
        refused, count = None, 0
        for item in items:
            refused = self.model.publish(item)
            if refused:
                break
            count += 1
        if refused:
            with pytest.raises(refused) as caught:
                self.queue.publish_many(kind(items), block=False)
            assert caught.value.count == count
        else:
            assert self.queue.publish_many(kind(items)) == n

    @rule(maxsize=sizes)
    def set_maxsize(self, maxsize):
        self.queue.maxsize = self.model.maxsize = maxsize

    # ---------------------------------------------------------------- subscribing
    @rule(name=st.sampled_from(NAMES), start=st.sampled_from(["next", "oldest", "middle"]), part=st.floats(0, 1))
    def subscribe(self, name, start, part):
        if name in self.subscribers:
            return
        oldest, end = self.model.oldest, len(self.model.log)
        place = {"next": end, "oldest": oldest, "middle": oldest + int(part * (end - oldest))}[start]
        self.subscribers[name] = self.queue.subscribe(start=place if start == "middle" else start)
        self.model.places[name], self.model.missed[name] = place, 0

    @rule(beyond=st.integers(1, 3))
    def subscribe_out_of_range(self, beyond):
        for start in (self.model.oldest - beyond, len(self.model.log) + beyond):
            with pytest.raises(ValueError, match="start: "):
                self.queue.subscribe(start=start)

    @precondition(lambda self: self.subscribers)
    @rule(data=st.data())
    def close(self, data):
        name = data.draw(st.sampled_from(sorted(self.subscribers)))
        self.subscribers.pop(name).close()
        del self.model.places[name]

    # ---------------------------------------------------------------- getting
    def taken(self, call):
        try:
            return call()
        except Lagged as lagged:
            return lagged
        except (Empty, ShutDown) as error:
            return type(error)

    def compare(self, found, expected):
        if isinstance(expected, Lagged):
            assert isinstance(found, Lagged)
            assert found.missed == expected.missed
        else:
            assert found == expected

    @precondition(lambda self: self.subscribers)
    @rule(data=st.data())
    def get(self, data):
        name = data.draw(st.sampled_from(sorted(self.subscribers)))
        self.compare(self.taken(lambda: [self.subscribers[name].get(block=False)]), self.model.take(name, 1))

    @precondition(lambda self: self.subscribers)
    @rule(data=st.data(), n=counts)
    def get_many(self, data, n):
        name = data.draw(st.sampled_from(sorted(self.subscribers)))
        found = self.taken(lambda: self.subscribers[name].get_many(n, block=False))
        self.compare(found, [] if n <= 0 else self.model.take(name, n))

    # ---------------------------------------------------------------- the end
    @precondition(lambda self: len(self.model.log) > 5)
    @rule(immediate=st.booleans(), really=st.sampled_from([False, False, False, True]))
    def shutdown(self, immediate, really):
        if not really:
            return
        self.queue.shutdown(immediate)
        self.model.down = True
        if immediate:
            self.model.places = dict.fromkeys(self.model.places, len(self.model.log))

    # ---------------------------------------------------------------- figures
    @invariant()
    def figures(self):
        if not hasattr(self, "queue"):
            return
        retained = len(self.model.log) - self.model.oldest
        assert self.queue.stats() == (
            retained,
            len(self.model.log),
            len(self.subscribers),
            retained,
            self.model.dropped,
        )
        assert self.queue.qsize() == retained
        for name, subscriber in self.subscribers.items():
            assert subscriber.position == self.model.places[name]
            assert subscriber.lag == len(self.model.log) - self.model.places[name]


@pytest.mark.parametrize("slow", ["raise", "drop_oldest", "block"])
def test_every_answer_is_the_models(slow):
    machine = type("Machine", (Machine,), {"slow": slow})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count(60, 1_000),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
