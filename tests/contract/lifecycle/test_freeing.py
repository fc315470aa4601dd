"""A thread that watches queues through weak references, as a monitor does, while another thread drops them."""

import pytest
from support.process import run_script

WATCHED = {
    "EntryQueue": "queue = manytail.EntryQueue(); queue.put(item)",
    "MultiQueue": "queue = manytail.MultiQueue(); queue.add('k').put(item)",
    "SubQueue": "queue = manytail.MultiQueue().add('k'); queue.put(item)",
    "Subscriber": "of = manytail.PubSubQueue(); queue = of.subscribe(); of.publish(item); del of",
    "Queue": "queue = manytail.queue.Queue(); queue.put(item)",
    "SimpleQueue": "queue = manytail.queue.SimpleQueue(); queue.put(item)",
    "a subclass": "queue = type('Derived', (manytail.EntryQueue,), {})(); queue.put(item)",
}

# The monitor looks while the item is freed, which is while its queue is: the finalizer waits for it, as the close of an
# open file waits for the disk.
SCRIPT = """
import threading, weakref
import manytail, manytail.queue

queues, look, looked = weakref.WeakSet(), threading.Semaphore(0), threading.Semaphore(0)

def watch():
    while look.acquire():
        for queue in list(queues):
            repr(queue)
        looked.release()

threading.Thread(target=watch, daemon=True).start()

class Item:
    def __del__(self):
        look.release()
        looked.acquire()

for _ in range(20):
    item = Item()
    MAKE
    queues.add(queue)
    del item, queue
    assert not list(queues)
print("done")
"""


@pytest.mark.parametrize("kind", WATCHED)
def test_a_monitor_does_not_reach_a_queue_that_is_being_freed(kind):
    assert run_script(SCRIPT.replace("MAKE", WATCHED[kind]), "-Wignore") == "done\n"
