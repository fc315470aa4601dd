"""Counts the instructions of pairs of calls: `make instructions` is this script.

    instructions.py [PYTHON...] [--pair NAME]

Each PYTHON is an interpreter that has manytail; without one, the interpreter that runs this. Name that of another
checkout to compare with it.

A program repeats a pair of calls. valgrind (cachegrind, without its cache model) counts the instructions of a short run
and of a long run. The difference is divided by the difference in repetitions, so that start and end of the interpreter
cancel out. The counts repeat to a part in a thousand: they show changes that are too small for the clock of a busy
machine. Exit status: 3 if there is no valgrind.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

SHORT, LONG = 2_000, 22_000

PAIRS = {
    "MultiQueue put+get": (
        "from manytail import MultiQueue; q = MultiQueue(); s = q.add(0); put, get = s.put, q.get",
        "put(None); get()",
    ),
    "MultiQueue bounded put+get": (
        "from manytail import MultiQueue; q = MultiQueue(); s = q.add(0, maxsize=9); put, get = s.put, q.get",
        "put(None); get()",
    ),
    "MultiQueue two sub-queues put+put+get+get": (
        "from manytail import MultiQueue; q = MultiQueue(); a, b = q.add(0).put, q.add(1).put; get = q.get",
        "a(None); b(None); get(); get()",
    ),
    "IndexMultiQueue put+get": (
        "from manytail import IndexMultiQueue; q = IndexMultiQueue(); s = q.add(0); put, get = s.put, q.get",
        "put(5); get()",
    ),
    "PubSubQueue publish+get": (
        "from manytail import PubSubQueue; q = PubSubQueue(); s = q.subscribe(); put, get = q.publish, s.get",
        "put(None); get()",
    ),
    "PubSubQueue publish, no subscriber": (
        "from manytail import PubSubQueue; put = PubSubQueue().publish",
        "put(None)",
    ),
    "PubSubQueue publish+4 gets": (
        "from manytail import PubSubQueue; q = PubSubQueue(); "
        "a, b, c, d = [q.subscribe().get for _ in range(4)]; put = q.publish",
        "put(None); a(); b(); c(); d()",
    ),
    "PubSubQueue publish_many+get_many of 10": (
        "from manytail import PubSubQueue; q = PubSubQueue(); s = q.subscribe(); "
        "put, get = q.publish_many, s.get_many; ten = [None] * 10",
        "put(ten); get(10)",
    ),
    "queue.Queue put+get": (
        "from manytail.queue import Queue; q = Queue(); put, get = q.put, q.get",
        "put(None); get()",
    ),
    "queue.Queue bounded put+get, looked up": (
        "from manytail.queue import Queue; q = Queue(9)",
        "q.put(None); q.get()",
    ),
    "queue.Queue put_nowait+get_nowait+task_done": (
        "from manytail.queue import Queue; q = Queue(); put, get, done = q.put_nowait, q.get_nowait, q.task_done",
        "put(None); get(); done()",
    ),
    "queue.SimpleQueue put+get": (
        "from manytail.queue import SimpleQueue; q = SimpleQueue(); put, get = q.put, q.get",
        "put(None); get()",
    ),
    "EntryQueue put+get+ack": (
        "from manytail import EntryQueue; q = EntryQueue(); s = q.subscribe(); put, get = q.put, s.get",
        "put(None); get().ack()",
    ),
}


def instructions(python, setup, pair, repetitions):
    """The instructions of one run."""
    program = f"{setup}\nfor _ in range({repetitions}): {pair}\nimport os; os._exit(0)"
    command = [
        "valgrind",
        "--tool=cachegrind",
        "--cache-sim=no",
        "--cachegrind-out-file=/dev/null",
        python,
        "-c",
        program,
    ]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    if "-ft" in python:
        environment["PYTHON_GIL"] = "0"
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return int(found[1].replace(",", ""))


def per_pair(python, name):
    setup, pair = PAIRS[name]
    return (instructions(python, setup, pair, LONG) - instructions(python, setup, pair, SHORT)) / (LONG - SHORT)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="*", default=[sys.executable])
    parser.add_argument(
        "--pair", action="append", metavar="NAME", help="only pairs whose name contains NAME; may be given again"
    )
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind is not on PATH", file=sys.stderr)
        return 3
    names = [name for name in PAIRS if not options.pair or any(part in name for part in options.pair)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = list(
            pool.map(lambda job: per_pair(*job), [(python, name) for name in names for python in options.python])
        )
    for i, name in enumerate(names):
        row = counts[i * len(options.python) : (i + 1) * len(options.python)]
        print(f"{name:40}", *(f"{count:9.1f}" for count in row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
