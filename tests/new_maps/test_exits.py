"""The interpreter exits while maps run: promptly, without noise, whatever runs them."""

import sys

import pytest
from support.process import environment, run_command

SCRIPT = """
import asyncio, logging, threading, time
from manytail._maps import AsyncCaller, Caller, Rate, aconcurrent_map, concurrent_map

logging.getLogger("manytail").addHandler(logging.NullHandler())  # which calls are abandoned is logged

def fn(item):
    time.sleep(item and 1000.0)
    return item

async def coroutine(item):
    await asyncio.sleep(item and 1000.0)
    return item

async def with_resource(item, resource):
    return await coroutine(item)

def blocking():
    yield 0
    yield 1
    time.sleep(1000.0)

kept = []
"""
WAYS = {
    "threads": "kept.append(concurrent_map(fn, range(9), workers=3)); next(kept[0])",
    "blocked input": "kept.append(concurrent_map(fn, blocking(), workers=3)); next(kept[0])",
    "timed": "kept.append(concurrent_map(fn, range(9), workers=3, timeout=500, limits=Rate(100))); next(kept[0])",
    "abandoned": "kept.append(concurrent_map(fn, range(2), timeout=0.01, errors='return')); list(kept[0])",
    "progress": "kept.append(concurrent_map(fn, range(9), progress=lambda seen: None)); next(kept[0])",
    "own loop": "kept.append(concurrent_map(coroutine, range(9), workers=3)); next(kept[0])",
    "own loop, setup": "kept.append(concurrent_map(with_resource, range(9), setup=list)); next(kept[0])",
    "inline": "kept.append(concurrent_map(fn, [0, 0, 1], workers='inline')); next(kept[0])",
    "inline loop": "kept.append(concurrent_map(coroutine, [0, 0, 1], workers='inline')); next(kept[0])",
    "caller's loop": '''
async def main():
    kept.append(aconcurrent_map(coroutine, range(9), workers=3))
    await anext(kept[0])
asyncio.run(main())''',
    "Caller": "kept.append(Caller(fn)); kept[0](0); kept[0].submit(1)",
    "Caller of a loop": "kept.append(Caller(coroutine)); kept[0](0); kept[0].submit(1)",
    "in another thread": '''
def take():
    kept.append(concurrent_map(fn, range(9), workers=3))
    next(kept[0])
    taken.set()
    next(kept[0])
taken = threading.Event()
threading.Thread(target=take, daemon=True).start()
taken.wait()''',
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "kept.clear()"], ids=["end", "SystemExit", "dropped"])
def test_the_interpreter_exits_while_a_map_runs(way, end):
    ran = run_command(sys.executable, "-c", f"{SCRIPT}{way}\n{end}\n", env=environment())
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
