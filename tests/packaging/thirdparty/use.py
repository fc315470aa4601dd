"""Runs thirdparty.Pipe and Line: every function of the nogil API for what it returns, and threads that wait."""

from concurrent.futures import ThreadPoolExecutor

from thirdparty import CODES, Line, Pipe

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


def strict_order():
    line = Line()
    assert [line.put_many(1, 3), line.put_many(1, 0), line.put_many(1, -1)] == [(OK, 3), (OK, 0), (BADARG, 0)]
    assert [line.get(0), line.get(1)] == [(OK, 1, 1), (OK, 2, 1)]
    assert line.sizes() == (1, 3)
    assert [line.release(0), line.get(2)] == [OK, (OK, 1, 2)]
    assert [line.release(0), line.ack(0)] == [BADARG, BADARG]
    assert [line.ack(1), line.reject(2), line.ack(2)] == [OK, OK, BADARG]
    assert [line.get(), line.get(1)] == [(OK, 3, 1), (EMPTY, 0, 0)]
    assert line.get(1, MILLISECOND)[0] == TIMEOUT
    line.forget()
    assert line.destroy() == 3


def levels_and_bounds():
    line = Line(levels=3, maxsize=4)
    assert [line.put(item, priority) for item, priority in [(1, 0), (2, 9), (3, 1), (4, -5)]] == [OK] * 4
    assert [line.put(5), line.put(5, timeout_ns=MILLISECOND), line.put_many(5, 2)] == [FULL, TIMEOUT, (FULL, 0)]
    assert [line.get(hand)[1] for hand in range(4)] == [2, 3, 1, 4]
    assert [line.put(5), line.ack(0), line.put_many(5, 2)] == [FULL, OK, (FULL, 1)]
    for hand in range(1, 4):
        line.forget(hand)
    for levels in 0, -1, 65536:
        try:
            Line(levels=levels)
        except MemoryError:
            continue
        raise AssertionError(levels)


def credit_and_closing():
    line = Line(credit=2)
    line.put_many(1, 3)
    assert [line.get(0)[0], line.get(1)[0], line.get(2)[0]] == [OK, OK, EMPTY]
    assert [line.ack(0), line.get(2)] == [OK, (OK, 3, 1)]
    assert [line.close(), line.close()] == [OK, BADARG]
    assert [line.sizes(), line.ack(1), line.release(2), line.get()[0]] == [(2, 2), BADARG, BADARG, BADARG]
    assert line.destroy() == 5


def looking_on():
    line = Line()
    line.put_many(1, 2)
    line.get()
    assert [line.look(), line.look()] == [(OK, 2), (EMPTY, 0)]
    assert [line.put(3), line.look(), line.ack()] == [OK, (OK, 3), OK]


def ends_of_a_line():
    line = Line()
    line.put_many(1, 2)
    line.shutdown()
    assert [line.put(3), line.get(0)[0], line.get(1)[0], line.get(2, -1)[0]] == [SHUTDOWN, OK, OK, SHUTDOWN]
    assert [line.release(0), line.get(2), line.ack(1), line.ack(2)] == [OK, (OK, 1, 2), OK, OK]
    line = Line()
    line.put_many(1, 4)
    line.get(0)
    line.get(1)
    line.shutdown(immediate=True)
    assert [line.get(2)[0], line.release(0), line.close(), line.ack(1)] == [SHUTDOWN, SHUTDOWN, OK, BADARG]
    assert line.destroy() == 2 + 3 + 4      # the caller still owned 1: its release was refused


def takers_that_give_back(n=20_000):
    line = Line(maxsize=64, credit=2)
    with ThreadPoolExecutor(3) as pool:
        drained = [pool.submit(line.drain) for _ in range(2)]
        assert pool.submit(line.feed, n).result(60) == OK
        line.shutdown()
        codes, counts, totals = zip(*(one.result(60) for one in drained), strict=True)
    rest = []
    while (got := line.get())[0] == OK:     # one thread released it while the other learned of the end
        rest.append(got[1])
        line.ack()
    assert (set(codes), sum(counts) + len(rest), sum(totals) + sum(rest)) == ({SHUTDOWN}, n, n * (n + 1) // 2)


MULTIQUEUE = codes_are_distinct, priority_and_order, capacity, hiding_and_removing, shutting_down, two_threads
ENTRYQUEUE = strict_order, levels_and_bounds, credit_and_closing, looking_on, ends_of_a_line, takers_that_give_back

for check in (*MULTIQUEUE, *ENTRYQUEUE):
    check()
    print(check.__name__)
