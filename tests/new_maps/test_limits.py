"""Limits of the new maps in one process: blocks, several owners, threads, loops, forks, collection."""

import asyncio
import copy
import gc
import os
import pickle
import time
import warnings
import weakref
from _thread import get_ident
from collections import Counter
from dataclasses import replace
from functools import partial
from time import sleep

import pytest
from support.forks import in_child
from support.threads import Threads

from manytail._maps.frames import with_costs
from manytail._maps.limits import objects, sections
from manytail._maps.limits.ledger import Never, Wait, Waiter
from manytail._maps.limits.objects import Budget, Concurrency, Rate
from manytail._maps.limits.sections import Owner, run
from manytail._maps.options import Options
from manytail._maps.outcomes import BudgetExceeded, Delivery
from manytail._maps.policies import Batch

from .accounts import reserved, waiting


def nothing() -> None:
    """A wake that nobody waits for."""


def take(owner, costs=None, accounts=None, waiters=None):
    accounts = owner.accounts if accounts is None else accounts
    costs = [1.0] * len(accounts) if costs is None else costs
    return owner.take(object(), waiters or owner.waiters, accounts, costs, time.monotonic())


def end(owner):
    """The call that began last."""
    owner.end(list(owner.held)[-1], None, time.monotonic())


# ---------------------------------------------------------------------------------------------------- blocks
def test_a_block_holds_a_permit_until_it_ends():
    limit = Concurrency(2)
    other = Owner([limit], nothing)
    with limit, limit(1) as block:
        assert isinstance(take(other), Wait)
        with pytest.raises(ValueError, match="never settled"):
            block.spent(1)
    assert isinstance(take(other), float)
    with pytest.raises(RuntimeError, match="no block of it has begun"):
        limit.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="the block has ended"):
        block.spent(1)


def test_what_a_block_spends_counts_instead_of_its_cost():
    budget = Budget(10, name="euros")
    with budget(4) as block:
        block.spent(1)
        block.spent(euros=6, elsewhere=99)
    assert budget.used() == 6
    with pytest.raises(BudgetExceeded, match="a cost of 5 does not fit; 6 is spent already"), budget(5):
        pass
    with budget(4), pytest.raises(RuntimeError, match="the caller already holds it"), budget(1):
        pass


def test_a_call_that_waits_for_its_own_caller_is_refused():
    limit = Concurrency(1)
    with limit, pytest.raises(RuntimeError, match="the caller already holds it"), limit:
        pass
    with limit:
        pass


@pytest.mark.parametrize("make", [lambda: Concurrency(3), lambda: Budget(3), lambda: Rate(3, 60, burst=9)])
def test_a_copy_begins_anew(make):
    limit = make()
    with limit:
        for other in (pickle.loads(pickle.dumps(limit)), copy.copy(limit)):
            assert repr(other) == repr(limit)
            assert isinstance(take(Owner([other], nothing), [3.0]), float)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Rate(0), r"amount: 0 \(expected: a number > 0\)"),
        (lambda: Rate(1, "seconds"), "per: 'seconds'"),
        (lambda: Rate(1, burst=float("inf")), "burst: inf"),
        (lambda: Rate(1e-320, "day"), "amount: .* that per can be divided by"),
        (lambda: Budget(-1), r"amount: -1 \(expected: a number >= 0\)"),
        (lambda: Concurrency(True), "amount: True"),
        (lambda: Concurrency(1, cost=lambda: 1), "cost: .*takes the item"),
        (lambda: Concurrency(1, lease=0), "lease: 0"),
        (lambda: Concurrency(1, name=""), "name: ''"),
        (lambda: Concurrency(1, per_key=True).__enter__(), "with per_key it cannot be used without a map"),
        (lambda: Concurrency(1, per_task=True)(2).__enter__(), "only a map in Spark has tasks"),
        (lambda: Concurrency(1)(-1), "cost: -1"),
    ],
)
def test_bad_arguments_are_refused(make, said):
    with pytest.raises((TypeError, ValueError), match=said):
        make()


def test_threads_never_exceed_a_concurrency_and_all_come_to_their_turn():
    limit, running, most = Concurrency(3), [], []

    def work():
        for _ in range(200):
            with limit:
                running.append(1)
                most.append(len(running))
                running.pop()

    with Threads() as threads:
        for _ in range(12):
            threads.start(work)
    assert max(most) <= 3
    assert isinstance(take(Owner([limit], nothing), [3.0]), float)


def test_tasks_share_a_limit_with_threads():
    limit, done = Concurrency(1), Counter()

    async def work():
        for _ in range(50):
            async with limit:
                done["task"] += 1
                await asyncio.sleep(0)

    async def all_of_them():
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(work())

    def block():
        for _ in range(200):
            with limit:
                pass

    with Threads() as threads:
        for _ in range(2):
            threads.start(partial(asyncio.run, all_of_them()))
        threads.start(block)
    assert done["task"] == 400


def test_a_cancelled_wait_holds_nothing_up():
    limit = Concurrency(1)

    async def enter():
        async with limit:
            pass

    async def main():
        holder = Owner([limit], nothing)
        assert isinstance(take(holder), float)
        tasks = [asyncio.create_task(enter()) for _ in range(3)]
        await asyncio.sleep(0)
        assert waiting(limit) == 3
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        end(holder)
        await asyncio.gather(*tasks[1:])

    asyncio.run(main())
    assert not waiting(limit)


def test_a_rate_spreads_what_waits_for_it():
    limit, begun = Rate(200), []
    for _ in range(20):
        with limit:
            begun.append(time.monotonic())
    assert begun[-1] - begun[0] >= 18 / 200 - 0.1


# ---------------------------------------------------------------------------------------------------- owners
def test_several_limits_give_all_or_nothing():
    one, two = Concurrency(2), Budget(1)
    owner = Owner([one, two], nothing)
    assert isinstance(take(owner), float)
    assert isinstance(take(owner), Wait)
    assert reserved(one) == 1
    end(owner)
    assert take(owner) == Never(two._account)
    assert reserved(one) == 0


@pytest.mark.thread_unsafe(reason="what a wake raises is raised where it is delivered, maybe in another thread")
def test_a_wake_reaches_who_waits_and_one_that_raises_keeps_it_from_nobody():
    limit = Concurrency(1)

    def bad():
        raise LookupError

    holder, first, second = (Owner([limit], wake) for wake in (nothing, bad, nothing))
    assert isinstance(take(holder), float)
    assert isinstance(take(first), Wait)
    assert isinstance(take(second), Wait)
    with pytest.raises(LookupError):
        end(holder)
    assert list(second.woken)[-1:] == [second.waiter]
    first.leave()
    assert isinstance(take(second), float)


def test_an_end_in_the_middle_of_a_section_waits_for_nothing_and_is_done_after_it():
    """As a finalizer does in the thread that it interrupts."""
    limit = Concurrency(1)
    owner, other = Owner([limit], nothing), Owner([limit], nothing)
    assert isinstance(take(owner), float)

    def interrupted(wakes: list[Waiter]) -> None:
        end(owner)
        assert isinstance(take(other), Wait)
        assert limit._account._reserved == 1

    run(interrupted)
    assert reserved(limit) == 0


# ---------------------------------------------------------------------------------------------------- keys
class Key:
    """A key whose equality is the user's code."""

    def __init__(self, number, limit):
        self.number, self.limit = number, limit

    def __hash__(self):
        return self.number % 4

    def __eq__(self, other):
        assert sections._section.holder != get_ident()
        with Concurrency(1):
            return self.number == other.number


@pytest.mark.thread_unsafe(reason="it changes how many accounts are kept")
def test_accounts_of_keys_are_kept_apart_and_forgotten_when_they_are_idle(monkeypatch):
    monkeypatch.setattr(objects, "IDLE_LIMIT", 10)
    limit = Concurrency(1, per_key=True)
    owner = Owner([limit], nothing)
    for number in range(100):
        key = Key(number, limit)
        accounts, waiters = owner.lane(key, number)
        assert owner.accounts_of(Key(number, limit)) == accounts
        accounts[0].users -= 1
        assert isinstance(take(owner, None, accounts, waiters), float)
        assert isinstance(take(owner, None, accounts, waiters), Wait)
        if number != 3:
            end(owner)
            owner.drop(waiters[0])
    assert len(limit._accounts) <= 22
    assert isinstance(take(Owner([limit], nothing), None, owner.accounts_of(Key(3, limit)), [Waiter(owner)]), Wait)


def test_threads_that_look_up_keys_while_others_are_forgotten_agree_on_accounts():
    limit = Concurrency(1, per_key=True)
    limit._accounts_limit = 4
    wrong, held = [], set()

    def work():
        owner = Owner([limit], nothing)
        for number in range(300):
            key = number % 7
            accounts, waiters = owner.lane(key, key)
            if isinstance(take(owner, None, accounts, waiters), float):
                if key in held:
                    wrong.append(key)
                held.add(key)
                sleep(0)  # another thread may run
                held.discard(key)
                end(owner)
            owner.drop(waiters[0])
            if number % 10 == 0:
                limit._forget_idle()

    with Threads() as threads:
        for _ in range(4):
            threads.start(work)
    assert not wrong
    assert all(account.users == 0 for account in limit._accounts.values())


# ---------------------------------------------------------------------------------------------------- ends
def test_a_block_of_a_generator_that_is_collected_gives_back():
    limit = Concurrency(1)

    def hold():
        with limit(1):
            yield

    held = hold()
    next(held)
    assert isinstance(take(Owner([limit], nothing)), Wait)
    del held
    gc.collect()
    assert reserved(limit) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.thread_unsafe(reason="it forks")
def test_a_forked_child_begins_anew():
    limit = Concurrency(1)
    with limit:
        sections._section.lock.acquire()  # as another thread at the fork
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            in_child(limit(1).__enter__)
        sections._section.lock.release()


def _begins_anew_inside(limit, holds) -> None:
    """In the child of a fork inside a block: nothing is held, and what ends there gives nothing back twice."""
    with limit:
        assert reserved(limit) == 1
    limit.__exit__(None, None, None)
    assert reserved(limit) == 0
    assert not any(one().held and one().holds(limit) for one in holds)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.thread_unsafe(reason="it forks")
def test_a_block_that_began_before_a_fork_is_not_held_in_the_child():
    limit = Concurrency(1)
    with limit:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            in_child(partial(_begins_anew_inside, limit, sections.held_here.get()))
        assert reserved(limit) == 1


def test_a_context_keeps_no_block_that_has_ended():
    limit = Concurrency(2)
    with limit as outer, limit as inner:
        kept = [weakref.ref(outer), weakref.ref(inner)]
    del outer, inner
    gc.collect()
    assert [one() for one in kept] == [None, None]
    assert not [one for one in sections.held_here.get() if one() is not None]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_what_a_block_holds_has_no_copy(copied):
    limit = Concurrency(1)
    with limit as block:
        with pytest.raises(TypeError, match="cannot copy or pickle what a block holds"):
            copied(block)
        assert reserved(limit) == 1
    assert reserved(limit) == 0


def test_an_empty_name_is_that_of_no_limit():
    money = Budget(9)
    with money as block:
        block.spent(**{"": 5})
    assert money.used() == 1


LIMITS = {
    "Rate": lambda: Rate(3, "minute", burst=2.0, cost=float, name="a"),
    "Budget": lambda: Budget(5.0, cost=float, name="a"),
    "Concurrency": lambda: Concurrency(4, cost=float, lease=3.0, per_key=True),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_copy_of_a_limit_for_frames_has_the_column_as_its_cost(name):
    limit = LIMITS[name]()
    asked = replace(Options(), limits=(limit,))
    (copied,) = with_costs(asked, ["price"]).limits
    assert repr(copied) == repr(limit).replace("cost=<class 'float'>", "cost='price'")
    (same,) = with_costs(asked, [None]).limits
    assert (same is not limit, repr(same)) == (True, repr(limit))


@pytest.mark.parametrize("kind", [Rate, Budget, Concurrency, Batch, Delivery], ids=lambda kind: kind.__name__)
def test_what_is_not_initialised_can_be_shown(kind):
    """A debugger or a traceback may show an object whose `__init__` did not run."""
    assert repr(kind.__new__(kind)) == f"<{kind.__name__}, not initialised>"
