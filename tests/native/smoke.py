"""A load for the extension modules under ThreadSanitizer; `make tsan` runs it and reads the reports.

The interpreter is not instrumented: what it orders with its own locks and counts is hidden from TSan. So only our
structures pass anything between threads. Threads start after everything is made. They share no Python object that they
write, and nothing is freed before the process ends. The garbage collector is off: it stops other threads in a way that
TSan does not see either.
"""
import gc
import os
import sys
import threading
from collections.abc import Callable
from queue import Empty, Full

from manytail import ClosedError, Consumer, EntryQueue, IndexMultiQueue, MultiQueue, PubSubQueue, ShutDown
from manytail._sync import Condition, Event, Mutex
from manytail.executor import KeyedExecutor
from manytail.queue import Queue, SimpleQueue

ITEMS = 2000
LAST = None  # ends a getter
made: list[object] = []  # kept until the process ends
wrong: list[str] = []


def threads(*functions: Callable[[], None]) -> list[threading.Thread]:
    started = [threading.Thread(target=checked, args=(function,)) for function in functions]
    made.append(started)
    for thread in started:
        thread.start()
    return started


def checked(function: Callable[[], None]) -> None:
    try:
        function()
    except BaseException as error:
        wrong.append(repr(error))


def join(started: list[threading.Thread]) -> None:
    for thread in started:
        thread.join()


def multi_queue(new: type, selection: str) -> None:
    queue = new(selection=selection)
    tails = [queue.add(key, maxsize=20 * (key % 2), priority=key % 2) for key in range(3)]
    made.append((queue, tails))

    def put(tail):
        for item in range(ITEMS):
            while True:
                try:
                    tail.put(item, timeout=0.0001 * (item % 5))
                    break
                except Full:
                    tail.enabled = True

    def get():
        while True:
            try:
                queue.get(timeout=0.0001)
                queue.task_done()
            except Empty:
                continue
            except ShutDown:
                return

    getters = threads(get, get, get)
    join(threads(*[lambda tail=tail: put(tail) for tail in tails]))
    queue.shutdown()
    join(getters)


def seen(*looked: object) -> None:
    """Takes what was looked at."""


def beside(looks: Callable[[], object], *works: Callable[[], None]) -> None:
    """Call `looks`, which changes nothing, again and again in a thread while others work."""
    over: list[None] = []

    def look():
        while not over:
            looks()

    lookers = threads(look)
    join(threads(*works))
    over.append(None)
    join(lookers)


def looking_at_a_multi_queue(new: type) -> None:
    queue = new()
    tails = [queue.add(key, maxsize=50) for key in range(2)]
    made.append((queue, tails))

    def put():
        for item in range(ITEMS):
            tails[item % 2].put(item)

    def get():
        for _ in range(ITEMS):
            queue.get()
            queue.task_done()

    def change():
        for number in range(200):
            tails[1].maxsize = 50 + number
            tails[1].priority = number % 2
            tails[1].weight = 1 + number % 3

    def look():
        seen(repr(queue), queue.qsize(), queue.empty(), queue.is_shutdown, queue.stats())
        for tail in tails:
            seen(repr(tail), tail.qsize(), tail.size, tail.remaining(), tail.empty(), tail.full(), tail.attached)
            seen(tail.maxsize, tail.priority, tail.weight, tail.enabled)

    beside(look, put, get, change)


def looking_at_a_queue(queue) -> None:
    """Not at `maxsize`, which the interpreter's critical sections guard."""
    made.append(queue)

    def put():
        for item in range(ITEMS):
            queue.put(item)

    def get():
        for _ in range(ITEMS):
            queue.get()
            queue.task_done()

    def change():
        for number in range(200):
            queue.maxsize = 20 + number

    def look():
        seen(queue.qsize(), queue.empty(), queue.full(), queue.unfinished_tasks, queue.is_shutdown)

    beside(look, put, get, change)


def looking_at_a_pub_sub() -> None:
    queue = PubSubQueue(maxsize=100)
    subscriber = queue.subscribe()
    made.append((queue, subscriber))

    def publish():
        for item in range(ITEMS):
            queue.publish(item)

    def read():
        for _ in range(ITEMS):
            subscriber.get()

    def change():
        for number in range(200):
            queue.maxsize = 100 + number

    def look():
        seen(repr(queue), queue.qsize(), queue.subscribers, queue.maxsize, queue.is_shutdown, queue.stats())
        seen(repr(subscriber), subscriber.position, subscriber.lag, subscriber.closed)

    beside(look, publish, read, change)


def looking_at_events() -> None:
    event, mutex = Event(), Mutex()
    changed = Condition(mutex)
    made.append((event, mutex, changed))

    def happen():
        for _ in range(200):
            event.set()
            event.clear()

    def wait():
        for _ in range(200):
            with changed:
                changed.wait(0.0001)

    def notify():
        for _ in range(200):
            with changed:
                changed.notify()

    def look():
        seen(event.is_set(), repr(changed), repr(mutex))

    beside(look, happen, wait, notify)


def lingering() -> None:
    """Gets that wait for more beside puts of sizes; some find the bound, some the end of their time."""
    queue = MultiQueue()
    tails = [queue.add(key, maxsize=30, sizer=int) for key in range(2)]
    made.append((queue, tails))

    def put(tail):
        for item in range(ITEMS):
            tail.put(item % 5)

    def get():
        try:
            while True:
                queue.get_many(10, linger=0.0002)
        except ShutDown:
            return

    getters = threads(get, get)
    join(threads(*[lambda tail=tail: put(tail) for tail in tails]))
    queue.shutdown()
    join(getters)


def of_the_standard_library(queue) -> None:
    """manytail.queue in kernel mode. Locked mode runs under the interpreter's own locks, which TSan does not see."""
    made.append(queue)

    def put():
        for item in range(ITEMS):
            queue.put(item)

    def get():
        while queue.get() is not LAST:
            pass

    getters = threads(get, get)
    join(threads(put, put))
    for _ in getters:
        queue.put(LAST)
    join(getters)


def pub_sub() -> None:
    queue = PubSubQueue(maxsize=100)
    subscribers = [queue.subscribe() for _ in range(2)]
    made.append((queue, subscribers))

    def publish():
        for item in range(ITEMS):
            queue.publish(item)

    def read(subscriber):
        for _ in subscriber:
            pass

    def come_and_go():
        for _ in range(200):
            with queue.subscribe():
                pass

    def linger(subscriber):
        try:
            while True:
                subscriber.get_many(10, linger=0.0002)
        except ShutDown:
            return

    readers = threads(
        *[lambda subscriber=subscriber: read(subscriber) for subscriber in [*subscribers, subscribers[0]]],
        lambda: linger(subscribers[0]),
    )
    join(threads(publish, publish, come_and_go))
    queue.shutdown()
    join(readers)


def entry_queue() -> None:
    queue = EntryQueue("smoke")
    subscriptions = [queue.subscribe() for _ in range(3)]
    made.append((queue, subscriptions))

    def put():
        for item in range(ITEMS):
            queue.put(item)

    def take(subscription):
        try:
            while True:
                entry = subscription.get()
                if entry.deliveries > 1 or entry.seq % 5:
                    entry.ack()
                else:
                    entry.release()
        except ShutDown:
            return

    takers = threads(*[lambda subscription=subscription: take(subscription) for subscription in subscriptions])
    join(threads(put, put))
    queue.shutdown()
    join(takers)


def looking_at_an_entry_queue() -> None:
    """Calls that only look, beside puts, releases with a delay, a new maxsize and the ends."""
    queue, consumer = EntryQueue("smoke"), Consumer()
    entries = [queue.put(item) for item in range(3)]
    alone, shared = queue.subscribe(), consumer.subscribe(queue)
    made.append((queue, consumer, entries, alone, shared))

    def put():
        for item in range(ITEMS // 4):
            queue.maxsize = 20 + item % 2
            queue.put(item)

    def take(getter):
        try:
            while True:
                entry = getter.get()
                if entry.deliveries > 1:
                    entry.ack()
                else:
                    entry.release(delay=0.000001)
        except (ShutDown, ClosedError):
            return

    def look():
        while not alone.closed:
            made.append([repr(queue), queue.is_shutdown, queue.maxsize, *(entry.expires_at for entry in entries)])
            seen(queue.qsize(), queue.depth(), queue.stats(), *(entry.state for entry in entries))
            for it in (alone, shared):
                seen(repr(it), it.unacked, it.prefetch, it.interest)
            seen(consumer.unacked)  # not repr: the interpreter's critical section guards the tuple of subscriptions
            queue.maintain()

    lookers = threads(look)
    takers = threads(lambda: take(alone), lambda: take(consumer), lambda: take(consumer))
    join(threads(put))
    queue.shutdown()
    for closes in (shared, alone):
        closes.close()
    consumer.close()
    join(takers + lookers)


def executor() -> None:
    with KeyedExecutor(max_workers=3) as pool:
        lanes = [pool.lane(key) for key in range(3)]
        served = pool._workers.pool
        made.append((pool, lanes))

        def submit():
            made.append([lanes[item % 3].submit(abs, item) for item in range(ITEMS)])

        def look():
            while not lanes[2].closed:
                made.append([repr(pool), served.workers, served.idle_workers, *map(repr, lanes), pool.lane(2)])

        lookers = threads(look)
        join(threads(submit, submit))
        lanes[0].max_running = 2
        lanes[2].shutdown()
        join(lookers)


def main() -> None:
    assert not sys._is_gil_enabled()
    gc.disable()
    for new in (MultiQueue, IndexMultiQueue):
        for selection in ("round_robin", "weighted", "oldest"):
            multi_queue(new, selection)
    lingering()
    for queue in (SimpleQueue(), Queue(), Queue(20)):
        of_the_standard_library(queue)
    pub_sub()
    looking_at_a_multi_queue(MultiQueue)
    looking_at_a_multi_queue(IndexMultiQueue)
    looking_at_a_queue(Queue(20))
    looking_at_a_pub_sub()
    looking_at_events()
    entry_queue()
    looking_at_an_entry_queue()
    executor()
    for words in wrong:
        print("smoke:", words, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(bool(wrong)))  # without freeing anything


main()
