"""Runs thirdparty.Pipe: every function of the nogil API for what it returns, and threads that wait."""

from concurrent.futures import ThreadPoolExecutor

from thirdparty import CODES, Pipe

OK, EMPTY, FULL, SHUTDOWN, TIMEOUT, BADARG = (
    CODES[name] for name in ("OK", "EMPTY", "FULL", "SHUTDOWN", "TIMEOUT", "BADARG")
)
MILLISECOND = 1_000_000


def codes_are_distinct():
    assert OK == 0
    assert len(set(CODES.values())) == len(CODES) == 7


def priority_and_order():
    pipe = Pipe()
    assert pipe.get() == (EMPTY, 0, False)
    assert pipe.get(MILLISECOND)[0] == TIMEOUT
    assert [pipe.put(7), pipe.put(8), pipe.put(1, urgent=True)] == [OK] * 3
    assert pipe.qsize() == 3
    assert [pipe.get(), pipe.get(), pipe.get()] == [(OK, 1, True), (OK, 7, False), (OK, 8, False)]
    assert [pipe.put_many(10, 5), pipe.put_many(10, 0), pipe.put_many(10, -1)] == [(OK, 5), (OK, 0), (BADARG, 0)]
    assert pipe.get_many(3) == (OK, [10, 11, 12])
    assert pipe.get_many(3) == (OK, [13, 14])


def capacity():
    pipe = Pipe(maxsize=2)
    assert [pipe.put(1), pipe.put(2), pipe.put(3), pipe.put(3, timeout_ns=MILLISECOND)] == [OK, OK, FULL, TIMEOUT]
    assert pipe.get()[1] == 1
    assert pipe.put_many(4, 3, timeout_ns=0) == (FULL, 1)


def hiding_and_removing():
    pipe = Pipe()
    pipe.put(5)
    pipe.enable_usual(False)
    assert (pipe.qsize(), pipe.get()[0]) == (0, EMPTY)
    pipe.enable_usual(True)
    assert pipe.qsize() == 1
    pipe.put(6)
    assert pipe.remove_usual() == (OK, 11)
    assert pipe.qsize() == 0
    pipe.put(9, urgent=True)
    assert pipe.destroy() == 9


def shutting_down():
    pipe = Pipe()
    pipe.put(1)
    pipe.shutdown()
    assert pipe.put(2) == SHUTDOWN
    assert [pipe.get()[0], pipe.get()[0], pipe.get(-1)[0]] == [OK, SHUTDOWN, SHUTDOWN]
    pipe = Pipe()
    pipe.put(1)
    pipe.shutdown(immediate=True)
    assert pipe.get()[0] == SHUTDOWN


def two_threads(n=20_000):
    pipe = Pipe(maxsize=64)
    with ThreadPoolExecutor(2) as pool:
        drained = pool.submit(pipe.drain)
        fed = pool.submit(pipe.feed, n)
        assert fed.result(60) == OK
        pipe.shutdown()
        assert drained.result(60) == (SHUTDOWN, n, True, n * (n + 1) // 2)


CHECKS = codes_are_distinct, priority_and_order, capacity, hiding_and_removing, shutting_down, two_threads

for check in CHECKS:
    check()
    print(check.__name__)
