"""What the end of an object, an ill-timed exception, a fork or another thread must not do to an entry queue.

tests/contract/lifecycle asks the same questions of every public class. These are the ones for entry queues only.
"""
import asyncio
import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import Empty

import pytest
from support.counts import part_of_races
from support.event_loops import in_every_kind_of_loop
from support.process import run_script
from support.threads import LONG, Threads, acting_when, ctrl_c, main_thread_sleeps, run_all, wait_asleep, wait_until

from manytail import Consumer, EntryQueue, PriorityEntryQueue, SortedEntryQueue

# -------------------------------------------------------------------------------------------------------- the collector


NESTS = {
    "entry, its item": "e = q.put(e)",
    "entry, its origin": "e = q.put(None, origin=e)",
    "entry, its group": "e = q.put(None, group=e)",
    "entry, a header": "e = q.put(None, headers={'a': e})",
    "subscription, its origin": "e = q.subscribe(origin=e, start='newest'); e.close()",
    "dead letters": "e = EntryQueue('q', dead_letter=e)",
}


@pytest.mark.parametrize("step", NESTS.values(), ids=NESTS)
def test_a_long_chain_is_freed_without_recursion(step):
    run_script(f"""
import sys, threading
from manytail import EntryQueue
# As in tests/contract/test_memory.py.
kib, depth = (4096, 100_000) if sys.version_info[:2] == (3, 13) else (256, 20_000)
def chain():
    q = EntryQueue("q")
    e = None
    for n in range(depth):
        {step}
        q.purge()
threading.stack_size(kib * 1024)
thread = threading.Thread(target=chain)
thread.start()
thread.join()
""")


# -------------------------------------------------------------------------------------------------------- other threads
def test_threads_that_share_a_browser_share_its_entries():
    for _ in range(20):
        queue = PriorityEntryQueue("q", levels=3)
        queue.put_many(range(200))
        browser = queue.browse()
        seen = run_all(*[lambda browser=browser: [entry.item for entry in browser]] * 4)
        assert sorted(item for items in seen for item in items) == list(range(200))
        assert next(browser, None) is None


@pytest.mark.parametrize("several", [False, True], ids=["subscription", "consumer"])
def test_an_exhausted_iterator_stays_exhausted_and_the_next_one_begins_anew(several):
    queue = EntryQueue("q")
    queue.put(1)
    holder = queue.subscribe()
    held = holder.get(False)
    it = Consumer() if several else queue.subscribe()
    with it:
        if several:
            it.subscribe(queue)
        queue.shutdown()
        first = iter(it)
        assert list(first) == []
        assert held.release()
        assert list(first) == []
        assert [entry.item for entry in it] == [1]

        async def once():
            return [entry.item async for entry in it]

        assert asyncio.run(once()) == []
    holder.close()


# --------------------------------------------------------------------------------------------------------- dead letters
def test_expired_entries_are_told_in_order_one_at_a_time_and_not_by_who_acts():
    dead, threads, inside = [], set(), []

    def letter(entry, reason):
        inside.append(entry)
        threads.add((threading.get_ident(), len(inside)))
        dead.append(entry.item)
        inside.pop()

    queue = EntryQueue("q", dead_letter=letter)
    for n in range(200):
        queue.put(n, ttl=0.001 + n / 5000)
        if n % 7 == 0:
            queue.maintain()
    wait_until(lambda: len(dead) == 200)
    assert dead == list(range(200))
    assert {n for _, n in threads} == {1}
    assert threading.get_ident() not in {thread for thread, _ in threads}


@pytest.mark.parametrize("through", ["callable", "finalizer", "key", "callable behind a queue"])
def test_the_timer_runs_no_code_of_the_users(through):
    """An expiring entry must not delay the timer: neither its item's finalizer nor code that its dead letter calls."""
    release = threading.Event()
    reached = threading.Event()

    def wait(*_):
        reached.set()
        release.wait(LONG)
        return 0                # as a key

    class Item:
        def __del__(self):
            wait()

    behind = {
        "callable": lambda: wait,
        "finalizer": lambda: None,
        "key": lambda: SortedEntryQueue("dead", key=wait),
        "callable behind a queue": lambda: EntryQueue("dead", maxsize=1, overflow="drop_oldest", dead_letter=wait),
    }[through]()
    slow = EntryQueue("slow", dead_letter=behind)
    quick = EntryQueue("quick")
    try:
        # In a thread that ends: without the GIL the thread that made an item may have to run its finalizer.
        for _ in range(2):
            run_all(lambda: slow.put(Item() if through == "finalizer" else 1, ttl=0.1) and None)
        assert reached.wait(LONG)
        quick.put(2, delay=0.05)
        with quick.subscribe() as subscription:
            assert subscription.get(timeout=LONG).item == 2
    finally:
        release.set()


def test_the_timer_thread_frees_no_queue():
    """When it has served a queue, nothing else may refer to it: freeing it runs the finalizers of its items."""
    posting, go_on = threading.Event(), threading.Event()
    main, timer, finalizers = threading.get_ident(), [], []

    class Item:
        def __del__(self):
            finalizers.append(threading.get_ident())

    class Waits(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *args, **options):
            handle = super().call_soon_threadsafe(*args, **options)
            if threading.get_ident() != main:
                timer.append(threading.get_ident())
                posting.set()
                go_on.wait(LONG)
            return handle

    async def get(queue):
        with queue.subscribe() as subscription:
            getter = asyncio.create_task(subscription.aget())
            for _ in range(5):
                await asyncio.sleep(0)
            queue.put(1, delay=0.01)
            (await getter).ack()

    def use():
        queue = EntryQueue("q")
        queue.put(Item(), delay=1000)
        loop.run_until_complete(get(queue))

    loop = Waits()
    try:
        use()
        assert posting.wait(LONG)
        gc.collect()
        assert finalizers == []
    finally:
        go_on.set()
        loop.close()
    wait_until(lambda: len(finalizers) == 1)
    assert finalizers[0] not in timer


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_what_expired_is_told_in_the_child_of_a_fork():
    run_script("""
import os, threading, time
from manytail import EntryQueue
main, held, dead = os.getpid(), threading.Event(), []
go = threading.Event()
def letter(entry, reason):
    if entry.item == "first" and os.getpid() == main:
        held.set()
        go.wait()
    dead.append(entry.item)
queue = EntryQueue("q", dead_letter=letter)
queue.put("first", ttl=0.001)
assert held.wait(60)
for n in range(3):
    queue.put(n, ttl=0.001)
while queue.depth():
    queue.maintain()
child = os.fork()
if child == 0:
    end = time.monotonic() + 60
    while dead != [0, 1, 2] and time.monotonic() < end:
        time.sleep(0.001)
    queue.put(3, ttl=0.001)
    while dead != [0, 1, 2, 3] and time.monotonic() < end:
        time.sleep(0.001)
    os._exit(dead != [0, 1, 2, 3])
assert os.waitpid(child, 0)[1] == 0
go.set()
""")


# The test forks while the timer's thread wakes a coroutine of such a loop. What follows then happens in the child.
FORK_WHILE_IT_WAKES = """
import asyncio, os, threading, time
from manytail import EntryQueue
main, go_on, posting = os.getpid(), threading.Event(), threading.Event()
class Waits(asyncio.SelectorEventLoop):
    def call_soon_threadsafe(self, *args, **options):
        if os.getpid() == main:
            posting.set()
            go_on.wait()
        return super().call_soon_threadsafe(*args, **options)
async def begin(coroutine):
    task = asyncio.create_task(coroutine)
    for _ in range(5):
        await asyncio.sleep(0)
    return task
{loses}
thread = threading.Thread(target=Waits().run_until_complete, args=(use(),))
thread.start()
assert posting.wait(60)
child = os.fork()
if child == 0:
    end = time.monotonic() + 60
    while not arrived() and time.monotonic() < end:
        time.sleep(0.001)
    os._exit(not arrived())
go_on.set()
assert os.waitpid(child, 0)[1] == 0
thread.join()
subscription.close()
"""
LOSES = {
    "a dead letter": """
dead = []
def letter(entry, reason):
    if os.getpid() == main:
        go_on.wait()
    dead.append(entry.item)
async def use():
    putter = await begin(queue.aput(2))
    for entry in taken:
        entry.unlock()          # from here on they expire
    await putter
queue = EntryQueue("q", maxsize=2, dead_letter=letter)
subscription = queue.subscribe()
queue.put_many([0, 1], ttl=0.5)
taken = subscription.get_many(2)
arrived = lambda: 1 in dead
""",
    "a letter for a queue": """
async def use():
    getter = await begin(subscription.aget())
    queue.put_many(range(5), ttl=0.05)
    (await getter).ack()
letters = EntryQueue("letters")
subscription = letters.subscribe()
queue = EntryQueue("q", dead_letter=letters)
arrived = lambda: letters.depth() == 5
""",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("loses", LOSES.values(), ids=LOSES)
def test_a_fork_while_the_timer_thread_wakes_a_coroutine_loses_nothing(loses):
    run_script(FORK_WHILE_IT_WAKES.format(loses=loses))


def late_letter(**options):
    """A queue whose dead letter is set once the other queues of its ring exist, and the function that sets it."""

    class Late(EntryQueue):
        pass

    queue = Late.__new__(Late)
    return queue, lambda letter: queue.__init__("ring", dead_letter=letter, **options)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_ring_of_dead_letter_queues_drops_what_comes_round_again(n):
    ring = [late_letter(maxsize=1, overflow="drop_oldest") for _ in range(n)]
    for i, (_, begin) in enumerate(ring):
        begin(ring[(i + 1) % n][0])
    queues = [queue for queue, _ in ring]
    for item in range(3 * n):
        queues[0].put(item)
    assert [queue.depth() for queue in queues] == [1] * n
    assert [next(queue.browse()).item for queue in queues] == list(range(3 * n - 1, 2 * n - 1, -1))
    assert (
        sum(queue.stats().enqueued for queue in queues) - sum(queue.stats().dead_lettered for queue in queues) == 3 * n
    )


def test_a_queue_that_is_its_own_dead_letter_gets_what_is_rejected_again():
    queue, begin = late_letter()
    begin(queue)
    queue.put_many([1, 2])
    with queue.subscribe() as subscription:
        assert subscription.get(False).reject()
        assert [entry.item for entry in queue.browse()] == [2, 1]
    assert queue.stats().dead_lettered == 1


def test_a_long_row_of_dead_letter_queues_that_overflow_is_no_recursion():
    run_script("""
from manytail import EntryQueue
last = []
row = [EntryQueue("q", maxsize=1, overflow="drop_oldest", dead_letter=lambda entry, reason: last.append(entry.item))]
for n in range(20_000):
    row.append(EntryQueue("q", maxsize=1, overflow="drop_oldest", dead_letter=row[-1]))
for n, queue in enumerate(row):
    queue.put(n)
row[-1].put("new")
assert [next(queue.browse()).item for queue in row[-1:-4:-1]] == ["new", 20_000, 19_999], last
assert last[-1] == 0, last[-3:]
""")


# -------------------------------------------------------------------------------------------- exceptions while it waits
@pytest.mark.thread_unsafe(reason="signals")
def test_ctrl_c_ends_an_immediate_put_into_a_full_queue():
    queue = EntryQueue("q", maxsize=1)
    queue.put(1)
    with pytest.raises(KeyboardInterrupt), acting_when(main_thread_sleeps, ctrl_c):
        queue.put(2, immediate=True)
    assert [entry.item for entry in queue.browse()] == [1]


def test_a_put_that_hands_over_nothing_gives_its_place_to_the_next():
    queue = EntryQueue("q", maxsize=1)
    first = queue.put(1)
    with queue.subscribe() as subscription, Threads() as threads:
        held = subscription.get(False)
        assert first.item == 1
        immediate = threads.start(lambda: queue.put("nobody waits for this", immediate=True))
        wait_asleep(immediate)
        plain = threads.start(lambda: queue.put(2))
        wait_asleep(plain)
        assert held.ack()
        assert immediate.result() is None
        assert plain.result().item == 2


@in_every_kind_of_loop
def test_an_aput_that_hands_over_nothing_gives_its_place_to_the_next():
    queue = EntryQueue("q", maxsize=1)
    queue.put(1)

    async def both():
        immediate = asyncio.ensure_future(queue.aput("nobody waits for this", immediate=True))
        await asyncio.sleep(0)
        plain = asyncio.ensure_future(queue.aput(2))
        await asyncio.sleep(0)
        with queue.subscribe() as subscription:
            subscription.get(False).ack()
            assert await asyncio.wait_for(immediate, LONG) is None
            assert (await asyncio.wait_for(plain, LONG)).item == 2

    asyncio.run(both())


# --------------------------------------------------------------------------------------------------------------- listen
class Rude(BaseException):
    """A BaseException that is no Exception."""


def test_a_selector_that_raises_a_base_exception_is_reported_and_the_listening_goes_on(monkeypatch):
    caught, heard = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: caught.append(unraisable.exc_type))

    def selector(entry):
        if entry.item == 1:
            raise Rude
        return True

    queue = EntryQueue("q")
    queue.put_many([1, 2])
    with ThreadPoolExecutor(1) as pool, Consumer() as consumer:
        consumer.subscribe(queue, selector=selector)

        def callback(entry):
            heard.append(entry.item)
            entry.ack()

        consumer.listen(callback, executor=pool)
        wait_until(lambda: heard == [2])
        queue.put(3)
        wait_until(lambda: heard == [2, 3])
    assert set(caught) == {Rude}
    assert [entry.item for entry in queue.browse()] == [1]


def test_a_base_exception_of_a_selector_ends_get_many_which_gives_everything_back():
    def selector(entry):
        if entry.item == 3:
            raise Rude
        return True

    queue = EntryQueue("q")
    queue.put_many([1, 2, 3])
    with queue.subscribe(selector=selector) as subscription, Consumer() as consumer:
        consumer.subscribe(queue, selector=selector)
        for of in (subscription, consumer):
            with pytest.raises(Rude):
                of.get_many(3)
            assert of.unacked == 0
    assert queue.qsize() == 3


# ------------------------------------------------------------------------------------------------------ loops, handlers
@pytest.mark.parametrize("cls", [EntryQueue, PriorityEntryQueue])
def test_a_queue_that_is_browsed_cannot_be_initialised(cls):
    """Another number of levels would not fit the iterator's cursor."""
    queue = cls.__new__(cls)
    iterator = queue.browse()
    with pytest.raises(RuntimeError, match="in use"):
        queue.__init__()
    queue.put(1)
    assert [entry.item for entry in iterator] == [1]


def test_a_finalizer_of_an_item_that_a_selector_has_ended_may_use_the_queue():
    """The handle that the selector got has the last reference to the item. It is dropped without the order lock."""
    seen = []

    class Item:
        def __del__(self):
            seen.append(queue.qsize())

    def selector(entry):
        if isinstance(entry.item, Item):
            other.get(False).ack()
        return False

    queue = EntryQueue()
    other, filtered = queue.subscribe(), queue.subscribe(selector=selector)

    def get():
        queue.put(Item())
        with pytest.raises(Empty):
            filtered.get(False)

    with Threads() as threads:
        threads.start(get).result()
    assert seen == [0]
    filtered.close()
    other.close()


# ----------------------------------------------------------------------------------------------------------------- fork
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("act", ["ack", "release", "reject", "unlock", "consumer", "close", "purge"])
def test_a_fork_while_another_thread_ends_its_delivery_leaves_nothing_half_done(act):
    """The child counts the entries on the lists. Every entry that is not held can be got."""
    run_script(f"""
import os, sys, threading
from manytail import Consumer, EntryQueue, ShutDown
queue = EntryQueue("q")
sys.setswitchinterval(1e-6)
stop = threading.Event()
act = {act!r}
def work():
    consumer = Consumer(prefetch=50)
    subscription = consumer.subscribe(queue) if act in ("consumer", "close") else queue.subscribe()
    n = 0
    while not stop.is_set():
        try:
            queue.put_many(range(4))
            got = subscription.get_many(4)
        except ShutDown:
            break
        for entry in got:
            if act == "unlock":
                entry.unlock()
                entry.ack()
            elif act == "purge":
                entry.unlock()
            elif act == "close":
                pass
            elif act == "consumer":
                entry.ack()
            else:
                getattr(entry, act)()
        if act == "purge" or act == "release":
            queue.purge()
        if act == "close":
            n += 1
            subscription.close()
            queue.purge()
            subscription = consumer.subscribe(queue)
    subscription.close()
    consumer.close()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
bad = 0
for _ in range({part_of_races(60)}):
    child = os.fork()
    if child == 0:
        stats = queue.stats()
        states = [entry.state.value for entry in queue.browse()]
        ok = (stats.available, stats.acquired, stats.depth) == (states.count(0), states.count(2), len(states))
        os._exit(0 if ok else 1)
    bad += os.waitpid(child, 0)[1] != 0
stop.set()
queue.shutdown()
for thread in threads:
    thread.join()
assert not bad, bad
""")
