"""The results of a map in a forked child."""

import sys

import pytest
from support.process import run_script

FORKED = """
import threading
from support.forks import in_child
from support.threads import wait_until
from manytail._maps import concurrent_map

begun, opened = threading.Event(), threading.Event()

def fn(item):
    if item:
        begun.set()
        assert opened.wait(60)
    return item

def child():
    for use in (results.__next__, results.stats):
        try:
            use()
        except RuntimeError as error:
            assert "parent process" in str(error), error
        else:
            raise AssertionError("it was used")
    results.stop()
    results.close()
    assert list(concurrent_map(str, [1])) == ["1"]

with concurrent_map(fn, range(5), workers=2) as results:
    assert next(results) == 0
    assert begun.wait(60)
    in_child(child)
    taker = threading.Thread(target=lambda: taken.extend(results))  # it is inside of next at the second fork
    taken = []
    taker.start()
    wait_until(lambda: results._driver.waiting)
    in_child(child)
    opened.set()
    taker.join()
    assert taken == [1, 2, 3, 4]

with concurrent_map(str, range(5), workers="inline") as results:
    assert next(results) == "0"
    in_child(lambda: list(results) == list("1234") or 1 / 0)
    assert list(results) == list("1234")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_results_in_a_forked_child_are_the_parents():
    run_script(FORKED)
