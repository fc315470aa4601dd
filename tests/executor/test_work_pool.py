"""The work pool on another executor: behaviours 1 to 8 of RabbitMQ's WorkPoolTests in our terms, and defects of that
pool.

The executor of most tests keeps its tasks until the test runs them, so that the test can check each state.
"""
import gc
import random
import sys
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from support.threads import DEADLINE, Threads, run_all, switching_often, wait_until

from manytail._workpool import BaseLane, Dispatcher, SerialLane
from manytail.executor import KeyedExecutor


class Manual:
    """An executor whose tasks run when the test says so."""

    def __init__(self):
        self.tasks = []
        self.refuses = None

    def submit(self, task):
        if self.refuses is not None:
            raise self.refuses
        self.tasks.append(task)

    def run(self):
        """Run the oldest task."""
        self.tasks.pop(0)()

    def run_all(self):
        while self.tasks:
            self.run()


class Inline:
    """An executor that runs a task in submit()."""

    def submit(self, task):
        task()


@pytest.fixture
def manual():
    return Manual()


@pytest.fixture
def seen():
    return []


@pytest.fixture
def errors():
    return []


@pytest.fixture
def dispatcher(manual, errors):
    return Dispatcher(manual, block=256, on_error=lambda item, error: errors.append((item, error)))


@pytest.fixture
def channel(dispatcher, seen):
    return dispatcher.lane(seen.append)


# ------------------------------------------------------------------------------------------------- behaviours 1 to 8
def test_1_a_closed_key_takes_nothing(channel, manual):
    channel.close()
    assert channel.add(1) is False
    assert manual.tasks == []


def test_2_the_first_add_asks_for_a_task_and_the_second_does_not(channel, manual):
    assert channel.state == "dormant"
    assert channel.add(1)
    assert len(manual.tasks) == 1
    assert channel.state == "ready"
    assert channel.add(2)
    assert len(manual.tasks) == 1


def test_3_a_block_of_one_leaves_the_rest_and_asks_again(manual, seen):
    channel = Dispatcher(manual, block=1).lane(seen.append)
    channel.add(1)
    channel.add(2)
    manual.run()
    assert (seen, channel.state, len(manual.tasks)) == ([1], "ready", 1)


def test_4_after_the_last_item_the_key_is_dormant_and_nothing_is_ready(channel, manual, seen):
    channel.add(1)
    task = manual.tasks[0]
    manual.run()
    assert (seen, channel.state, manual.tasks) == ([1], "dormant", [])
    task()  # one task too many finds nothing
    assert (seen, manual.tasks) == ([1], [])


def test_5_an_add_in_progress_asks_for_nothing_and_is_served_after_the_block(manual, seen):
    dispatcher = Dispatcher(manual, block=1)

    def handler(item):
        seen.append((item, channel.state))
        if item == 1:
            channel.add(2)
            assert manual.tasks == []

    channel = dispatcher.lane(handler)
    channel.add(1)
    manual.run()
    assert len(manual.tasks) == 1
    manual.run()
    assert seen == [(1, "in progress"), (2, "in progress")]


def test_6_keys_are_served_in_the_order_they_became_ready_each_up_to_a_block(manual, seen):
    dispatcher = Dispatcher(manual, block=3)
    b, a = dispatcher.lane(seen.append), dispatcher.lane(seen.append)
    a.add("a1")
    b.add("b1")
    for n in range(2, 6):
        a.add(f"a{n}")
    manual.run()
    assert seen == ["a1", "a2", "a3"]
    manual.run()
    assert seen == ["a1", "a2", "a3", "b1"]
    manual.run()
    assert seen == ["a1", "a2", "a3", "b1", "a4", "a5"]
    assert manual.tasks == []


def test_7_closing_a_key_takes_its_items_and_no_other_keys(dispatcher, manual, seen):
    a, b = dispatcher.lane(seen.append), dispatcher.lane(seen.append)
    for n in range(3):
        a.add(("a", n))
        b.add(("b", n))
    assert a.close() == [("a", 0), ("a", 1), ("a", 2)]
    manual.run_all()
    assert seen == [("b", 0), ("b", 1), ("b", 2)]


def test_8_after_closing_all_keys_nothing_is_ready(dispatcher, manual, seen):
    channels = [dispatcher.lane(seen.append) for _ in range(5)]
    for channel in channels:
        channel.add(1)
    for channel in channels:
        channel.close()
    manual.run_all()
    assert (seen, dispatcher.pending, manual.tasks) == ([], 0, [])


# ---------------------------------------------------------------------------------------- defects of the original pool
def test_a_key_made_again_while_its_old_block_runs_shares_nothing_with_it(dispatcher, manual, seen):
    """Each generation of a key has one block at a time. The end of the old one does not affect the new one."""
    def old_handler(item):
        seen.append(("old", item))
        if item == 1:
            assert old.close() == [2]
            new.add(3)
            assert new.state == "ready"
            manual.run()                       # the new generation is served while the old block runs
            new.add(4)
            assert new.state == "ready"

    old = dispatcher.lane(old_handler)
    new = dispatcher.lane(lambda item: seen.append(("new", item)))
    old.add(1)
    old.add(2)
    manual.run()
    assert new.state == "ready"                # the end of the old block did not change it
    manual.run_all()
    assert seen == [("old", 1), ("new", 3), ("new", 4)]


def test_an_executor_that_refuses_strands_no_key(channel, manual, seen):
    manual.refuses = RuntimeError("cannot schedule new futures after shutdown")
    with pytest.raises(RuntimeError, match="cannot schedule"):
        channel.add(1)
    assert (channel.pending, channel.state) == (0, "dormant")
    manual.refuses = None
    assert channel.add(2)
    assert len(manual.tasks) == 1
    manual.run()
    assert seen == [2]


def test_an_interruption_of_add_is_raised_though_the_item_has_run(seen):
    class Interrupted(Inline):
        def submit(self, task):
            super().submit(task)
            raise KeyboardInterrupt

    channel = Dispatcher(Interrupted()).lane(seen.append)
    with pytest.raises(KeyboardInterrupt):
        channel.add(1)
    assert (seen, channel.state) == ([1], "dormant")


def test_what_others_added_before_the_refusal_was_known_is_served_later(dispatcher, manual, seen):
    class Late(Manual):
        """Another thread adds between the state change and the refusal, and gets no error."""
        def submit(self, task):
            if self.refuses is not None and not seen:
                seen.append("refused")
                assert channel.add("other") in (True, False)
            super().submit(task)

    late = Late()
    dispatcher = Dispatcher(late)
    channel = dispatcher.lane(seen.append)
    late.refuses = RuntimeError("full")
    with pytest.raises(RuntimeError):
        channel.add("mine")
    late.refuses = None
    other = dispatcher.lane(seen.append)
    other.add("next")                          # any add submits a task for all that is ready
    late.run_all()
    assert "mine" not in seen
    assert seen[0] == "refused"
    assert seen[-1] == "next"
    assert channel.pending == 0


def test_a_task_that_cannot_be_submitted_again_serves_what_is_left(manual, seen):
    dispatcher = Dispatcher(manual, block=2)
    channels = [dispatcher.lane(seen.append) for _ in range(2)]
    for n in range(5):
        for channel in channels:
            channel.add(n)
    assert len(manual.tasks) == 2
    # It runs the tasks that it has, as executors do after shutdown.
    manual.refuses = RuntimeError("cannot schedule new futures after shutdown")
    manual.run_all()
    assert sorted(seen) == sorted(2 * list(range(5)))


def test_for_a_task_that_the_executor_cancels_the_next_add_asks_again(seen):
    futures = []

    class Cancels(Manual):
        def submit(self, task):
            super().submit(task)
            futures.append(Future())
            return futures[-1]

    executor = Cancels()
    channel = Dispatcher(executor).lane(seen.append)
    channel.add(1)
    executor.tasks.clear()
    futures[0].cancel()
    channel.add(2)
    executor.run_all()
    assert seen == [1, 2]


def test_a_pool_shut_down_with_its_tasks_cancelled_gives_items_back(seen):
    release = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(release.wait, DEADLINE)
        channel = Dispatcher(executor).lane(seen.append)
        channel.add(1)
        executor.shutdown(wait=False, cancel_futures=True)
        release.set()
    assert channel.close() == [1]
    assert channel.wait(DEADLINE)
    assert seen == []


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_item_that_raises_loses_no_other(dispatcher, manual, seen, errors, kind):
    def handler(item):
        if item % 2:
            raise kind(item)
        seen.append(item)

    channel = dispatcher.lane(handler)
    for n in range(6):
        channel.add(n)
    manual.run_all()
    assert seen == [0, 2, 4]
    assert [(item, type(error), str(error)) for item, error in errors] == [(n, kind, str(n)) for n in (1, 3, 5)]
    assert channel.state == "dormant"


@pytest.mark.parametrize("broken_hook", [False, True])
def test_without_a_listener_the_error_goes_to_unraisablehook(manual, monkeypatch, broken_hook):
    caught = []
    monkeypatch.setattr(
        sys,
        "unraisablehook",
        lambda args: caught.append((args.exc_type, str(args.exc_value), args.exc_traceback is not None)),
    )

    def on_error(item, error):
        raise TypeError("of the listener")

    channel = Dispatcher(manual, on_error=on_error if broken_hook else None).lane()

    def item():
        raise ValueError("of the item")

    channel.add(item)
    manual.run_all()
    assert caught == [(TypeError, "of the listener", True) if broken_hook else (ValueError, "of the item", True)]


# ------------------------------------------------------------------------------------------------- channels
def test_close_from_inside_drops_the_rest_of_the_block(dispatcher, manual, seen):
    def handler(item):
        seen.append(item)
        assert channel.inside
        assert dispatcher.inside
        assert channel.wait() is False          # it does not wait for itself
        dropped.extend(channel.close())

    dropped = []
    channel = dispatcher.lane(handler)
    for n in range(4):
        channel.add(n)
    manual.run_all()
    assert (seen, dropped, channel.add(9)) == ([0], [1, 2, 3], False)
    assert not channel.inside
    assert not dispatcher.inside
    assert channel.wait(DEADLINE)


def test_close_without_drop_runs_what_is_in_it(channel, manual, seen):
    channel.add(1)
    channel.pause()
    assert channel.close(drop=False) == []
    assert channel.add(2) is False
    manual.run_all()
    assert seen == [1]
    assert channel.wait(DEADLINE)
    assert channel.closed


def test_wait_comes_back_when_nothing_is_left_and_nothing_runs(seen):
    go_on = threading.Event()
    with ThreadPoolExecutor(2) as executor:
        channel = Dispatcher(executor).lane(lambda item: (go_on.wait(DEADLINE), seen.append(item)))
        channel.add(1)
        channel.add(2)
        assert channel.wait(0) is False
        assert channel.wait(0.01) is False
        with Threads() as threads:
            waiting = threads.start(channel.wait)
            go_on.set()
            assert waiting.result() is True
        assert seen == [1, 2]


def test_inside_knows_which_lane_and_nests(seen):
    dispatcher = Dispatcher(Inline())
    inner = dispatcher.lane(lambda item: seen.append((inner.inside, outer.inside, other.inside)))
    outer = dispatcher.lane(lambda item: (inner.add(item), seen.append((inner.inside, outer.inside, other.inside))))
    other = dispatcher.lane()
    outer.add(1)
    assert seen == [(True, True, False), (False, True, False)]


def test_an_executor_that_runs_tasks_at_once_keeps_order(seen):
    channel = Dispatcher(Inline(), block=2).lane(lambda item: (seen.append(item), item < 9 and channel.add(item + 1)))
    channel.add(0)
    assert seen == list(range(10))


def test_pause_holds_items_and_resume_serves_them(channel, manual, seen):
    channel.pause()
    channel.add(1)
    assert channel.state == "paused"
    assert manual.tasks == []
    channel.resume()
    manual.run_all()
    assert seen == [1]


def test_a_bounded_lane_makes_add_wait_except_inside(seen):
    go_on, begun = threading.Event(), threading.Event()

    def handler(item):
        begun.set()
        go_on.wait(DEADLINE)
        seen.append(item)
        if item == 1:
            assert channel.add("over the bound")

    with ThreadPoolExecutor(1) as executor, Threads() as threads:
        dispatcher = Dispatcher(executor)
        channel = dispatcher.lane(handler, max_pending=1)
        channel.add(1)
        assert begun.wait(DEADLINE)
        channel.add(2)
        waiting = threads.start(channel.add, 3)
        wait_until(lambda: dispatcher.submitters_waiting == 1)
        go_on.set()
        assert waiting.result() is True
        assert channel.close(drop=False) == []
        assert channel.wait(DEADLINE)
    assert seen[0] == 1
    assert sorted(map(str, seen)) == ["1", "2", "3", "over the bound"]


def test_close_lets_a_waiting_add_go(dispatcher):
    channel = dispatcher.lane(max_pending=1)
    channel.add(1)
    with Threads() as threads:
        waiting = threads.start(channel.add, 2)
        wait_until(lambda: dispatcher.submitters_waiting == 1)
        assert channel.close() == [1]
        assert waiting.result() is False


# ------------------------------------------------------------------------------------------------- arguments, memory
@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Dispatcher(object()), TypeError, "submit"),
        (lambda: Dispatcher(Manual(), block="x"), TypeError, "block: 'x'"),
        (lambda: Dispatcher(Manual(), block=0), ValueError, "block: 0"),
        (lambda: Dispatcher(Manual()).lane(max_pending=1.5), TypeError, "max_pending"),
        (BaseLane, TypeError, "cannot be made by itself"),
    ],
)
def test_arguments_are_checked(make, error, says):
    with pytest.raises(error, match=says):
        make()


class Thing:
    """An object that can be weakly referenced."""


def test_an_item_is_let_go_after_it_ran_and_when_it_is_dropped(dispatcher, manual):
    channel = dispatcher.lane(lambda item: None)
    things = [Thing(), Thing()]
    gone = [weakref.ref(thing) for thing in things]
    channel.add(things.pop())
    manual.run_all()
    channel.add(things.pop())
    channel.close()
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_cycles_through_items_handlers_and_lanes_are_collected():
    class Forgetful(Manual):
        """Refers to no task, so that only the cycle refers to the lanes."""
        def submit(self, task):
            pass

    gone = []
    for busy in (False, True):
        dispatcher = Dispatcher(Forgetful())
        thing = Thing()
        thing.channel = dispatcher.lane(lambda item, thing=thing: None)
        if busy:
            thing.channel.add(thing)
        gone.append(weakref.ref(thing))
        del dispatcher, thing
    gc.collect()
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_a_busy_lane_lives_though_nobody_refers_to_it(dispatcher, manual, seen):
    dispatcher.lane(seen.append).add(1)
    gc.collect()
    manual.run_all()
    assert seen == [1]


def test_add_in_a_finalizer_run_by_an_item_that_is_dropped(dispatcher, manual, seen):
    class Adds:
        def __del__(self):
            channel.add("from the finalizer")

    channel, other = dispatcher.lane(seen.append), dispatcher.lane()
    other.add(Adds())
    other.close()
    gc.collect()
    manual.run_all()
    assert seen == ["from the finalizer"]


# ------------------------------------------------------------------------------------------------- stress
class Book:
    """Records what a lane runs. Checks that it runs in order, one at a time."""

    def __init__(self):
        self.items = []
        self.busy = threading.Lock()

    def __call__(self, item):
        if not self.busy.acquire(blocking=False):
            raise AssertionError("two items of one lane at once")
        self.items.append(item)
        self.busy.release()


@pytest.mark.parametrize(
    "make", [partial(ThreadPoolExecutor, 4), partial(KeyedExecutor, 4)], ids=["ThreadPoolExecutor", "KeyedExecutor"]
)
@pytest.mark.parametrize("block", [1, 7, 256])
def test_each_lane_in_order_and_never_two_at_once(make, block):
    errors = []
    with switching_often(), make() as executor:
        dispatcher = Dispatcher(executor, block=block, on_error=lambda item, error: errors.append(error))
        books = [Book() for _ in range(8)]
        channels = [dispatcher.lane(book) for book in books]

        def produce(producer):
            order = list(range(len(channels)))
            for n in range(200):
                random.shuffle(order)
                for index in order:
                    channels[index].add((producer, n))

        run_all(*[partial(produce, producer) for producer in range(3)])
        for channel in channels:
            channel.close(drop=False)
            assert channel.wait(DEADLINE)
    assert errors == []
    for book in books:
        for producer in range(3):
            assert [n for who, n in book.items if who == producer] == list(range(200))


def test_closing_in_the_middle_runs_or_returns_each_item_once():
    with switching_often(), ThreadPoolExecutor(4) as executor:
        dispatcher = Dispatcher(executor, block=5)
        for _ in range(40):
            ran, accepted = [], []
            channel = dispatcher.lane(ran.append)

            def produce(start, channel=channel, accepted=accepted):
                for n in range(start, 100, 2):
                    if channel.add(n):
                        accepted.append(n)

            def close(channel=channel):
                dropped = channel.close()
                assert channel.wait(DEADLINE)
                return dropped

            *_, dropped = run_all(partial(produce, 0), partial(produce, 1), close)
            assert sorted(ran + dropped) == sorted(accepted)


class _OwnLane(SerialLane):
    """A lane whose handler is its own method."""

    def __init__(self, dispatcher, handler, max_pending):
        super().__init__(dispatcher, self.handle, 0)

    def handle(self, item):
        """Does nothing."""


class _OwnDispatcher(Dispatcher):
    """A dispatcher that is its own executor, and whose error handler is its own method."""

    def __init__(self):
        super().__init__(self, on_error=self.failed)

    def submit(self, task):
        """Never runs the task."""

    def failed(self, item, error):
        """Does nothing."""


def living(kind):
    """The objects of that class. Weak references prove nothing: the collector clears those of a garbage cycle even if
    it cannot break the cycle."""
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


def test_a_lane_whose_handler_is_its_own_method_is_collected(manual):
    lanes = [_OwnLane(Dispatcher(manual), None, 0) for _ in range(3)]
    assert living(_OwnLane) == 3
    del lanes
    assert living(_OwnLane) == 0


def test_a_dispatcher_that_is_its_own_executor_is_collected():
    dispatchers = [_OwnDispatcher() for _ in range(3)]
    lanes = [dispatcher.lane(print) for dispatcher in dispatchers]
    assert living(_OwnDispatcher) == 3
    del dispatchers, lanes
    assert living(_OwnDispatcher) == 0
