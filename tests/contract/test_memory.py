"""What every structure keeps and frees: an item is freed when it is done, the collector sees what is inside, deep nests
do not overflow the stack, and a process does not grow. tests/contract/lifecycle has the cycles of every class.
"""
import gc
import sys
import weakref

import pytest
from support.counts import part
from support.process import run_script
from support.threads import Threads, wait_until

from contract.structures import STRUCTURES

pytestmark = [
    pytest.mark.thread_unsafe(reason="counts references and objects of the whole process"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
OBJECTS = [name for name in STRUCTURES if name != "IndexMultiQueue"]


class Item:
    """An object that can be weakly referenced. Sorted queues keep their order."""

    made = 0

    def __init__(self, *refers):
        self.refers = refers
        Item.made = self.number = Item.made + 1

    def __int__(self):
        return self.number


@pytest.fixture(params=OBJECTS)
def new(request):
    """A kind of structure whose items are any objects."""
    return STRUCTURES[request.param]


def close(on):
    on.close()
    if hasattr(on.queue, "purge"):
        on.queue.purge()


ENDS = {
    "get": lambda on, n: [on.get(block=False) for _ in range(n)].clear(),
    "get_many": lambda on, n: on.get_many(n).clear(),
    "immediate shutdown": lambda on, n: on.shutdown(immediate=True),
    "close": lambda on, n: close(on),
    "discard": lambda on, n: [on.into.discard(item) for item in on.into].clear(),
    "clear": lambda on, n: on.into.clear(),
}
OF_MULTI_QUEUES = ("discard", "clear")
ENDS_OF = [
    (name, end)
    for name in OBJECTS
    for end in ENDS
    if (end != "close" if name == "MultiQueue" else end not in OF_MULTI_QUEUES)
]


@pytest.mark.parametrize(("new", "end"), ENDS_OF, indirect=["new"])
def test_items_are_freed_however_they_end(new, end):
    on, items = new(), [Item() for _ in range(150)]
    refs = [weakref.ref(item) for item in items]
    on.put_many(items)
    items.clear()
    gc.collect()
    assert None not in [ref() for ref in refs]
    ENDS[end](on, 150)
    if end != "immediate shutdown":
        on.put(Item())  # a list keeps its last place until the next one comes
    gc.collect()
    kept = end == "immediate shutdown"
    wait_until(lambda: sum(ref() is not None for ref in refs) <= kept)  # the timer's thread may hold one for a moment
    on.close()


def test_items_go_with_their_structure(new):
    def leave():
        on, items = new(), [Item(), Item()]
        on.put_many(items)
        return [weakref.ref(it) for it in (*items, on.queue, *on.outs)]

    refs = leave()
    gc.collect()
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)


def test_items_are_visible_to_the_collector(new):
    on, items = new(), [Item() for _ in range(150)]
    on.put_many(items)
    seen, todo = set(), [on.queue]
    while todo:
        for it in gc.get_referents(todo.pop()):
            if id(it) not in seen and type(it) is not type:
                seen.add(id(it))
                if not isinstance(it, Item):
                    todo.append(it)
    on.close()
    assert {id(item) for item in items} <= seen


def test_collecting_while_threads_put_and_get(new):
    on, total = new(maxsize=50), part(500)

    def put_all():
        for _ in range(total):
            on.put(Item(on))

    def get_all():
        return sum(on.get().refers == (on,) for _ in range(total))

    with Threads() as threads:
        getter = threads.start(get_all)
        threads.start(put_all)
        for _ in range(10):  # a bounded number: without the GIL each collection stops the threads
            gc.collect()
        assert getter.result() == total
    on.close()


NEST = """
import gc, sys, threading, warnings
from contract.structures import STRUCTURES
warnings.simplefilter("ignore")
new = STRUCTURES[{name!r}]
new.options = {{"key": lambda item: 0}} if getattr(new, "options", None) else {{}}
# CPython 3.13 lets 10,000 deallocations nest whatever the stack is: there nested lists overflow 256 KiB too. Without
# optimisation (MANYTAIL_DEBUG) the frames of these need 4.5 MiB, with it less than 2.
kib, depth = (8192, 20_000) if sys.version_info[:2] == (3, 13) else (256, 5_000)

def nest():
    inner = None
    for _ in range(depth):
        on = new()
        on.put(inner)
        inner = on.outs[0] if {name!r} == "PubSubQueue" else on.queue
    return inner

def collect():
    outer = [nest()]
    outer.append(outer)
    del outer
    gc.collect()

threading.stack_size(kib * 1024)
for run in (nest, collect):
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
print("done")
"""


@pytest.mark.parametrize("name", [name for name in OBJECTS if name != "Consumer"])
def test_deep_nests_do_not_overflow_the_stack(name):
    assert run_script(NEST.format(name=name)) == "done\n"


GROWTH = """
import gc, os
import manytail
from contract.structures import STRUCTURES

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def run(rounds):
    for n in range(rounds):
        {body}

{setup}
run({rounds} // 10)
before = resident()
run({rounds})
grown = resident() - before
assert grown < 2_500_000, grown
print("done")
"""
DEAD_ITERATOR = """
def dead_iterator():
    tail = manytail.MultiQueue().add("a")
    tail.put_many([None] * 100)
    walk = iter(tail)
    next(walk)
    dead = [walk]
    dead.append(dead)
    tail.clear()        # the iterator's pin alone keeps the chunk
"""
SHORT_SUB_QUEUES = """
queue, items = manytail.MultiQueue(), [None] * 50
tails = [queue.add(key, maxsize=key % 2 * 100_000) for key in range(100)]
def pass_through(tail):
    tail.put_many(items)
    assert len(queue.get_many(50)) == 50
"""
TIME_OUTS = """
on, full = STRUCTURES[{name!r}](), STRUCTURES[{name!r}](maxsize=1)
full.put(1)
def time_out(call, *args):
    try:
        call(*args, timeout=1e-9)
    except (manytail.Empty, manytail.Full):
        return
    raise AssertionError
"""
# Rounds, what comes before them, and a round.
FLOWS = {
    **{
        name: (60_000, f"on = STRUCTURES[{name!r}]()", "on.put(n); on.get(block=False)")
        for name in STRUCTURES
    },
    "an iterator in a dead cycle": (20_000, DEAD_ITERATOR, "dead_iterator(); n % 500 or gc.collect()"),
    "short sub-queues": (20_000, SHORT_SUB_QUEUES, "pass_through(tails[n % 100])"),
    **{
        f"time-outs of {name}": (20_000, TIME_OUTS.format(name=name), "time_out(on.get); time_out(full.put, 2)")
        for name in ("MultiQueue", "EntryQueue", "PubSubQueue")
    },
    # Of entry queues.
    "only the middle dies": (
        60_000,
        "queue = manytail.EntryQueue()\nfirst = queue.put(-1)\nsubscription = queue.subscribe(start='newest')\n"
        "queue.put(-2, group='last')",
        "queue.put(n); subscription.get(False).ack()",
    ),
    "an idle subscription": (
        60_000,
        "queue = manytail.EntryQueue()\nidle = queue.subscribe()\nbrowser = queue.subscribe(browse=True)\n"
        "subscription = queue.subscribe()",
        "queue.put(n); subscription.get(False).ack()",
    ),
    "release": (
        60_000,
        "queue = manytail.EntryQueue()\nsubscription = queue.subscribe()\nqueue.put_many(range(5))",
        "subscription.get(False).release()",
    ),
    "subscribe close": (
        60_000,
        "queue = manytail.EntryQueue()\nqueue.put(1)",
        "subscription = queue.subscribe(); subscription.get(False); subscription.close()",
    ),
    "immediate": (60_000, "queue = manytail.EntryQueue()", "assert queue.put(n, immediate=True) is None"),
    "drop oldest": (
        60_000,
        "queue = manytail.PriorityEntryQueue(maxsize=10, overflow='drop_oldest')",
        "queue.put(n, priority=n % 10)",
    ),
    "last value": (60_000, "queue = manytail.LastValueQueue('q', key=lambda n: n % 7)", "queue.put(n)"),
    "sorted": (
        60_000,
        "queue = manytail.SortedEntryQueue('q', key=lambda n: n % 1000)\nqueue.put_many(range(500))\n"
        "subscription = queue.subscribe()",
        "queue.put(n); subscription.get(False).ack()",
    ),
    "expire": (60_000, "queue = manytail.EntryQueue(ttl=1e-7)", "queue.put(n); queue.maintain()"),
    "groups": (
        60_000,
        "queue = manytail.EntryQueue('q', groups='shared')\nsubscription = queue.subscribe()",
        "queue.put(n, group=n); subscription.get(False).ack()",
    ),
    "ack_up_to": (
        60_000,
        "queue = manytail.EntryQueue()\nsubscription = queue.subscribe()",
        "queue.put(n); last = subscription.get(False); n % 50 or subscription.ack_up_to(last)",
    ),
}


@pytest.mark.rss
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
@pytest.mark.parametrize("flow", FLOWS)
def test_memory_of_a_steady_flow_does_not_grow(flow):
    rounds, setup, body = FLOWS[flow]
    script = GROWTH.format(rounds=rounds, setup=setup, body=body)
    assert run_script(script, "-W", "ignore") == "done\n"
