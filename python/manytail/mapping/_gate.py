"""The gate, between the admission's queue and the workers: decides which call starts now, where more than keys and
priorities decides that.

The admission says which call is next, the gate whether it may start now. A call is an item or, with `batch`, an
ItemBatch, which is formed before it goes to the admission (`_batches`). A call passes the gate when a worker is free,
its key's breaker allows it (`_breaker`), no equal item is being called (`_dedup`), and all limits have room for it
(`_limits`). Then it is in `ready`, and a worker takes it. Like the scheduler, which owns it, the gate has no thread,
clock or I/O, and no lock but those of limits that other maps use too.

    event                    meaning
    admit(items, now)        new items
    dispatch(full, now)      put in `ready` what may start; full: the window is full, so no batch lingers
    late(call, now)          for a worker, before its call, without the lock: whether the call must no longer begin. If
                             it may, it begins
    missed(call, now)        it was too late: the call goes back, and takes from its limits again
    succeeded(item, now), returned(batch, verdicts, now), failed(call, is_retried, now), deferred(call, now)  the call
                             has ended; is_retried: another attempt follows
    overdue(call)            its time is over. One of the above follows
    input_ended()            from here on no batch lingers
    recalled(item, now), uncalled(call, now)  a worker makes no call: the result is recorded, or its items fail
    stop(now)                the map ends: what calls in `ready` took of the limits is given back
    calls_ended(now)         its last call has ended
    failed_for_good(item)    no call of the item follows
    recheck(lane, now)       the time has come at which a call of this key may start
    pause(lane, until, now)  no call of the key starts before `until`; its calls in `ready` go back

    effect                   what the scheduler does
    ready                    a queue of calls for workers
    handed                   if `hands_over` is set: the call of the worker that called `dispatch`, instead of `ready`
    grew                     more calls may run at once than before; the runner resets it
    refused, answered        items that failed, or got the result of an equal item, without a call. To refuse an item
                             is to put it into `refused`: it has no room in a limit, no time left, or an open breaker
    error                    why the map fails
    rechecks                 call `recheck` of that lane at that time
    wake_at                  call `dispatch` at that time, unless it is called earlier

A key at its limit (a limit with per_key, breaker) is disabled in the admission, so that other keys start. A call that
waits for a limit of the map stays the next one, and nothing is taken out of the admission until `_blocked_until`, or
until the ledger wakes the map. So a more urgent item that arrives in that time goes first.

What a key is granted of a shared limit and does not use is wasted. So a key asks a database only when its next call is
taken out, and at most `workers` keys ask at a time. The others wait for their turn; the more urgent ask first.

Invariants
    _asking        keys for which more of a shared limit is asked for: at most `workers`
    starts         calls in `ready`, handed over or with a worker: at most `allowed` when the last of them started. Who
                   removes one ends it in the ledger
    lane.pinned    the lane is disabled because of its limits, so the admission must not drop it
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from manytail import MultiQueue

from ._adaptive import Adaptive
from ._admission import Admission
from ._batches import BatchFormer
from ._breaker import BreakerState
from ._dedup import Dedup
from ._item import Item, ItemBatch, Lane, Spread, Work, flat, spent_of
from ._ledger import Never, Wait, Waiter
from ._limits import Budget, Concurrency, Owner
from ._options import Options
from ._types import BreakerOpen

FAR = 86_400.0  # seconds; the timer of a map that waits to be woken


class Start:
    """What a call got when it passed the gate."""

    __slots__ = ("accounts", "begun", "costs", "halvings", "is_overdue", "is_settled", "period", "until")
    # Where `workers` is a pair, else not set.
    halvings: int  # how often the number was halved when the call passed the gate
    is_overdue: bool

    def __init__(self, accounts: Sequence[Any], costs: Sequence[float], until: float, period: int) -> None:
        """accounts, costs: what it took of each limit. until: after that time the start is too late. period: of its
        key's breaker."""
        self.accounts = accounts
        self.costs = costs
        self.until = until
        self.period = period
        self.begun = False  # a worker has begun the call
        self.is_settled = False  # the map has ended before the call's end was reported


class LaneLimits:
    """The limits of one key."""

    __slots__ = ("blocked_until", "breaker", "is_asking", "is_to_ask")

    def __init__(self, options: Options) -> None:
        self.blocked_until = -math.inf  # a limit of the key has no room before
        breaker = options.breaker
        self.breaker = None if breaker is None else BreakerState(breaker.failures, breaker.reset)
        self.is_asking = False  # more is asked for
        self.is_to_ask = False  # it waits for its turn to ask

    @property
    def until(self) -> float:
        """No start before that time. Infinite while a probe runs."""
        return self.blocked_until if self.breaker is None else max(self.blocked_until, self.breaker.until)


class Gate:
    """Decides which calls may start now."""

    def __init__(self, options: Options, admission: Admission, spent: dict[str, float]) -> None:
        """spent: where it counts what calls took of limits that have names, if they did not say it themselves."""
        self.ready: MultiQueue[None, Work] = MultiQueue()
        self.starts: dict[Work, Start] = {}
        self.allowed = options.workers  # calls at once
        self.grew = False
        self.wake_at = math.inf
        # Effects, which the scheduler removes.
        self.refused: list[tuple[Item, BaseException]] = []  # no item here or in `answered` holds a slot
        self.answered: list[Item] = []
        self.rechecks: list[tuple[float, Lane]] = []
        self.error: BaseException | None = None
        self.owner = Owner(options.limits, _nobody) if options.limits else None
        self.spent = spent
        self._blocked_until = -math.inf  # a limit of the map has no room before
        self._options = options
        self._admission = admission
        self._ready = self.ready.add(None)
        self._passed: list[Work] = []  # to be put in `ready` at the end of `dispatch`
        self.hands_over = False  # the caller of `dispatch` is a worker without a call, which gets one in `handed`
        self.handed: Work | None = None
        self._asking = 0
        self._to_ask: list[tuple[float, int, Lane]] = []  # a heap, by priority and arrival
        self._numbers = count()
        self._within = math.inf if options.retry.within is None else options.retry.within
        self._dedup = None if options.dedup is None else Dedup(options.dedup)
        self._chooses = self._dedup is not None or self._within < math.inf  # whether `_choose` may remove items
        self.leaders: list[Item] = []  # to be admitted by `dispatch`: followers whose leader has failed
        self._batched = options.batch is not None
        linger = 0.0 if options.batch is None else options.batch.linger
        in_order = options.order == "key" and options.prioritised
        self._unit = (1.0,) * len(options.limits)  # what a call takes of limits without a cost
        self._counts_spent = options.wants_delivery or any(limit.name is not None for limit in options.limits)
        self._former = BatchFormer(options.calls_items, linger, in_order)
        self._hurry = False  # the input has ended: no batch lingers
        self._breaks = options.breaker is not None
        self._may_fail_fast = options.breaker is not None and options.breaker.when_open == "fail"
        self._keyed = self.owner is not None and self.owner.keyed
        self._has_lane_limits = self._breaks or self._keyed
        self._changed: dict[Lane, None] = {}  # lanes whose limits may allow a call again
        if self._keyed:
            admission.prepare, admission.forget = self.prepare, self.forget

    @property
    def following(self) -> int:
        """Items that wait for an equal item."""
        return 0 if self._dedup is None else self._dedup.following

    def to_run(self) -> int:
        """Calls that run or may run."""
        return len(self.starts) + self._admission.queue.qsize() + self._admission.paused_without_keys()

    def prepare(self, lane: Lane) -> None:
        """A new key: look its accounts up. In the reader's thread: runs the user's `__hash__` and `__eq__`. TypeError:
        a shared limit, and a key of a type that has no stable encoding."""
        assert self.owner is not None
        lane.accounts = self.owner.accounts_of(lane.key)

    def forget(self, lane: Lane) -> None:
        """The key is dropped. In any thread: a new lane is not used, because another thread was first."""
        assert self.owner is not None
        self.owner.release(lane.accounts, lane.waiters)

    # ------------------------------------------------------------------------------------------------ items come
    def admit(self, items: list[Item], now: float) -> None:
        for item in items:
            item.passed, item.last_error = False, None
        if self._may_fail_fast:
            items = [item for item in items if not self._refuse_if_open(item, now)]
        self._admission.admit(self._former.add(items, now) if self._batched else items)

    def input_ended(self) -> None:
        self._hurry = True

    def leader(self, item: Item) -> Item:
        """The item whose result this one gets: an equal one, or itself."""
        return item if self._dedup is None else self._dedup.leader(item)

    def fails_fast(self, lane: Lane, now: float) -> bool:
        """Whether the waiting items of this key fail at once: its breaker is open, and the options say so."""
        return self._may_fail_fast and lane.limits is not None and lane.limits.breaker.is_open(now)

    def _refuse_if_open(self, item: Item, now: float) -> bool:
        """Refuse the item if the items of its key fail at once. Returns whether it did."""
        fails = self.fails_fast(item.lane, now)
        if fails:
            self.refused.append((item, self.breaker_open(item)))
        return fails

    def _readmit(self, item: Item) -> None:
        """Admit an item without a slot again."""
        call: Work = ItemBatch([item]) if self._batched else item
        call.passed = False
        self._admission.readmit(call)

    # ------------------------------------------------------------------------------------------------ what starts
    def dispatch(self, full: bool, now: float) -> None:
        if self.owner is not None and self.owner.woken:
            self._handle_wakes(now)
        if self._changed or self.leaders or self._batched:
            self._admit_again(full, now)
        self.wake_at = self._former.due if self._batched else math.inf
        queue, allowed = self._admission.queue, self.allowed
        while len(self.starts) < allowed:
            if queue.empty():
                if self._let_next_ask(now):
                    continue
                self._stop_waiting(now)
                break
            if self._blocked_until > now:
                self.wake_at = min(self.wake_at, self._blocked_until)
                break
            call = queue.peek()  # a call that has to wait stays where it is, and keeps the turn of its key
            if not self._chooses or self._choose(call, now):
                self._start(call, now)
        if self._passed and self.hands_over and self.ready.empty():  # else those in `ready` come first
            self.handed, self.hands_over = self._passed.pop(0), False
        if self._passed:
            passed, self._passed = self._passed, []  # first: after an interruption they are not put a second time
            self._ready.put_many(passed)

    def _limits_of(self, lane: Lane) -> LaneLimits:
        if lane.limits is None:
            lane.limits = LaneLimits(self._options)
        return lane.limits  # type: ignore[no-any-return]

    def _admit_again(self, full: bool, now: float) -> None:
        """Admit what may start because a call has ended or time has passed."""
        for lane in self._changed:
            self.recheck(lane, now)
        self._changed.clear()
        leaders, self.leaders = self.leaders, []
        for item in leaders:
            if not self._refuse_if_open(item, now):
                self._readmit(item)
        if self._former.due < math.inf:
            due = math.inf if full or self._hurry else now
            self._admission.admit(self._former.release(due))

    def _choose(self, call: Work, now: float) -> bool:
        """Remove from the next call the items that get the result of an equal item, or whose time for attempts is over.
        Returns whether any is left."""
        chosen = [item for item in call.members() if self._is_called(item) and not self._out_of_time(item, now)]
        if not chosen:
            self._take_out(call)
            self._pass(call)
            self._admission.finished(call)
        elif isinstance(call, ItemBatch):
            call.items = chosen
        return bool(chosen)

    def _is_called(self, item: Item) -> bool:
        """Whether fn is to get the item. If not, it follows an equal item, or has its result and is in `answered`."""
        if self._dedup is None:
            return True
        if self._dedup.answered(item):
            self.answered.append(item)
            return False
        return self._dedup.leads(item)

    def is_over(self, item: Item, at: float) -> bool:
        """Whether no attempt of the item may start at that time, because its first one started too long ago."""
        return at > item.first_start + self._within

    def _out_of_time(self, item: Item, now: float) -> bool:
        """Refuse the item if it was called before and no attempt may start now. Returns whether it did."""
        was_called = item.attempts > 0 or item.deferred is not None
        over = was_called and self._within < math.inf and self.is_over(item, now)
        if over:
            error: Any = item.last_error if item.last_error is not None else item.deferral[1]
            self.refused.append((item, error))
        return over

    def _start(self, call: Work, now: float) -> None:
        """Let the next call start, if all limits have room for it."""
        start = Start((), (), math.inf, 0)
        if self.owner is not None and not self._take(call, start, now):
            return
        self._take_out(call)
        lane = call.lane
        if self._has_lane_limits:
            limits = self._limits_of(lane)
            if limits.breaker is not None:
                start.period = limits.breaker.started()
            if limits.until > now:
                self.recheck(lane, now)
        self._pass(call)
        if lane.unsecured:
            self._admission.secure_slot(call)
        if lane.spread is not None:
            self._spread(lane, lane.spread, now)
        self.starts[call] = start
        if self._within < math.inf:
            for item in call.members():
                if item.attempts == 0 and item.deferred is None:
                    item.first_start = now
        if self._batched:
            for item in call.members():
                item.attempts += 1
        self._passed.append(call)

    def _spread(self, lane: Lane, spread: Spread, now: float) -> None:
        """A call of the key has started after a pause: the next one comes later."""
        spread.at = now + spread.step
        if spread.at >= spread.end:
            spread.at, lane.spread = spread.end, None
        lane.next_start = spread.at
        self.recheck(lane, now)

    # ------------------------------------------------------------------------------------------------ the ledger
    def _take(self, call: Work, start: Start, now: float) -> bool:
        """Take what the call costs of all limits. Returns False if it has to wait, is halved or is refused."""
        owner, lane = self.owner, call.lane
        assert owner is not None
        if owner.keyed:
            if lane.waiters is None:
                lane.waiters = owner.waiters_of(lane.accounts, lane)
            start.accounts, waiters = lane.accounts, lane.waiters
        else:
            start.accounts, waiters = owner.accounts, owner.waiters
        try:
            start.costs = self._costs(call.members()) if self._batched or self._options.has_costs else self._unit
        except OverflowError:
            self._refuse_sum(call, waiters, now)
            return False
        may_ask = not self._keyed or self._asking < self._options.workers
        answer = owner.take(waiters, start.accounts, start.costs, now, may_ask, start)
        if isinstance(answer, float):
            start.until = answer
            return True
        if isinstance(answer, Never):
            self._halve_or_refuse(call, answer, start.costs[start.accounts.index(answer.account)])
        else:
            self._wait(call, answer, now)
        return False

    def has_room_beside(self, call: Item, holders: Iterable[Work]) -> bool:
        """For a call that fn hands in: whether it waits for none of these calls. It would if a Concurrency, or a Budget
        of this process, had room for it only after their end."""
        if self.owner is None:
            return True
        accounts = call.lane.accounts if self.owner.keyed else self.owner.accounts
        starts = [self.starts[one] for one in holders if one in self.starts]
        for index, (limit, cost) in enumerate(zip(self.owner.limits, self._costs([call]), strict=True)):
            if isinstance(limit, Concurrency) or (isinstance(limit, Budget) and limit.shared is None):
                needed = cost + (limit.used() if isinstance(limit, Budget) else 0.0)
                held = sum(start.costs[index] for start in starts if start.accounts[index] is accounts[index])
                if needed <= limit.amount < needed + held:
                    return False
        return True

    def _costs(self, items: Sequence[Item]) -> tuple[float, ...]:
        """What a call of these items takes of each limit. OverflowError: no float is as large as their sum."""
        if len(items) == 1:
            return items[0].costs if self._options.has_costs else self._unit
        if not self._options.has_costs or not items:
            return (float(len(items)),) * len(self._unit)
        return tuple(map(math.fsum, zip(*(item.costs for item in items), strict=True)))

    def _wait(self, call: Work, answer: Wait, now: float) -> None:
        """The next call has to wait, and with it its key or the map."""
        lane, at = call.lane, min(answer.at, now + FAR)
        if answer.account.of_key:
            limits = self._limits_of(lane)
            limits.blocked_until = at
            if answer.account.limit.shared is not None and answer.at == math.inf:
                self._wait_for_grant(call, limits)
            self.recheck(lane, now)
            return
        self._blocked_until = at
        owner = self.owner
        if owner is not None and owner.waits_for_itself(answer.account, owner.waiter.cost):
            why = "the caller already holds it, and would wait for itself"
            self.error = RuntimeError(f"{answer.account.limit!r}: {why}")

    def _wait_for_grant(self, call: Work, limits: LaneLimits) -> None:
        """A database is asked for more of a limit of the key, or will be when fewer keys ask."""
        if self._asking < self._options.workers:
            limits.is_asking = True
            self._asking += 1
        elif not limits.is_to_ask:
            limits.is_to_ask = True
            heappush(self._to_ask, (call.priority, next(self._numbers), call.lane))

    def _asks_no_more(self, limits: LaneLimits) -> None:
        """A key has been answered. The map may have waited for its turn to ask."""
        self._asking -= limits.is_asking
        limits.is_asking = False
        self._blocked_until = -math.inf

    def _let_next_ask(self, now: float) -> bool:
        """Enable the next key that waits for its turn to ask. False: there is none, or it is not its turn."""
        if not self._to_ask or self._asking >= self._options.workers:
            return False
        lane = heappop(self._to_ask)[2]
        lane.limits.is_to_ask, lane.limits.blocked_until = False, -math.inf
        self.recheck(lane, now)
        return True

    def _halve_or_refuse(self, call: Work, answer: Never, cost: float) -> None:
        """There will never be room for the next call: halve a batch, refuse an item."""
        self._take_out(call)
        if isinstance(call, ItemBatch) and len(call.items) > 1:
            self._admission.secure_slot(call)
            self._halve(call, call.attempts, call.passed)
            return
        self._pass(call)
        self._admission.finished(call)
        item, limit = call.members()[0], answer.account.limit
        retried = isinstance(limit, Budget) and item.last_error is not None
        error: Any = item.last_error if retried else limit.refusal(cost)  # fn's own error says more
        self.refused.append((item, error))

    def _refuse_sum(self, call: Work, waiters: Iterable[Waiter], now: float) -> None:
        """No limit can be asked for what the next call costs, a batch: each of its items fails."""
        assert self.owner is not None
        for waiter in waiters:
            self.owner.leave(waiter, now)  # it may wait for this batch as it was before its last items came
        self._take_out(call)
        self._pass(call)
        self._admission.finished(call)
        items = call.members()
        why = f"cost: the sum for a batch of {len(items)} items is no float (expected: a finite number)"
        self.refused += [(item, ValueError(why)) for item in items]

    def _handle_wakes(self, now: float) -> None:
        """Limits may have room for those that the ledger has woken: these keys, or the map, may start calls again."""
        owner = self.owner
        assert owner is not None
        while owner.woken:
            waiter = owner.woken.popleft()
            lane = waiter.lane
            if lane is None:
                self._blocked_until = -math.inf
                continue
            limits = self._limits_of(lane)
            limits.blocked_until = -math.inf
            if limits.is_asking:
                self._asks_no_more(limits)
            self.recheck(lane, now)
            if not self._admission.has_ready(lane):
                owner.leave(waiter, now)

    def _stop_waiting(self, now: float) -> None:
        """No call is ready: the map waits for no limit."""
        self._blocked_until = -math.inf
        if self.owner is not None and self.owner.waiter.account is not None:
            self.owner.leave(self.owner.waiter, now)

    def _settle(self, start: Start, call: Work, now: float, costs: Sequence[float] | None = None) -> None:
        """The call has ended. costs: what Budgets count, instead of start.costs."""
        if self.owner is None or start.is_settled:
            return
        if costs is None and not self._counts_spent:
            self.owner.end(start.accounts, start.costs, start.costs, now, start)
            return
        said = spent_of(call) if self._options.wants_delivery else {}
        amounts = []
        for index, limit in enumerate(self.owner.limits):
            name = limit.name
            if None in said and limit is self._options.settled_limit:  # see `spent_of`
                amount = said[None]
            elif name is not None and name in said:
                amount = said[name]
            else:
                amount = costs[index] if costs is not None and isinstance(limit, Budget) else start.costs[index]
                if name is not None:
                    self.spent[name] = self.spent.get(name, 0.0) + amount
            amounts.append(amount)
        self.owner.end(start.accounts, start.costs, tuple(amounts), now, start)

    def _undo(self, start: Start, now: float) -> None:
        """The call did not begin."""
        if self.owner is not None and not start.is_settled:
            self.owner.end(start.accounts, start.costs, (0.0,) * len(start.costs), now, start)

    def stop(self, now: float) -> None:
        for call, start in list(self.starts.items()):
            if self._ready.discard(call):
                self._undo(self.starts.pop(call, start), now)

    def calls_ended(self, now: float) -> None:
        for call, start in list(self.starts.items()):
            (self._settle(start, call, now) if start.begun else self._undo(start, now))
            start.is_settled = True  # the end of an abandoned call may be reported later
        if self.owner is not None:
            for start in list(self.owner.taken):  # an interruption has lost the call
                spent = start.costs if start.begun else (0.0,) * len(start.costs)
                self.owner.end(start.accounts, start.costs, spent, now, start)
            self.owner.leave_all(now)

    def _take_out(self, call: Work) -> None:
        """Take the next call out of the admission. No further item joins a batch."""
        self._admission.queue.get_nowait()
        if self._batched:
            self._former.close(call)  # type: ignore[arg-type]

    def _pass(self, call: Work) -> None:
        """The call passes, or ends without a start. At its first time, other items of its key may become ready."""
        if not call.passed:
            call.passed = True
            if self._admission.reports_starts:
                self._admission.started(call.lane)

    def late(self, call: Work, now: float) -> bool:
        """Whether the call must not begin: it is too late for a Rate, its key pauses, the breaker has opened, or the
        time for attempts of one of its items is over. If not, `begun` is set."""
        start, lane = self.starts[call], call.lane
        late = now > start.until or lane.paused_until > now
        late = late or (self._within < math.inf and any(self.is_over(each, now) for each in self._called_before(call)))
        late = late or (self._breaks and bool(lane.limits.breaker.stops(start.period, now)))
        start.begun = not late
        return late

    def _called_before(self, call: Work) -> list[Item]:
        """The items of a call in `ready` that were called before. Those of a batch count the attempt to come."""
        return [item for item in call.members() if item.attempts > self._batched or item.deferred is not None]

    def missed(self, call: Work, now: float) -> None:
        start = self._end(call)
        self._undo(start, now)
        self._admission.give_back(call)
        if self._breaks:
            call.lane.limits.breaker.undone(start.period)
        if self._batched:
            for item in call.members():
                item.attempts -= 1

    # ------------------------------------------------------------------------------------------------ calls end
    def overdue(self, call: Work) -> None:
        """Nothing: only an AdaptiveGate notes it."""

    def succeeded(self, item: Item, now: float) -> None:
        start = self._end(item)
        if self.owner is not None:
            self._settle(start, item, now)
        if self._breaks:
            item.lane.limits.breaker.succeeded(start.period)
        if self._dedup is not None:
            self._answer_followers(item)

    def returned(self, batch: ItemBatch, verdicts: Sequence[Any], now: float) -> None:
        """The call of a batch has ended. verdicts: None for each item with a result, else its verdict. For the breaker
        the call succeeded if one of the items that fn got did."""
        start = self._end(batch)
        got = set(batch.to_call())
        called = [(item, verdict) for item, verdict in zip(batch.items, verdicts, strict=True) if item in got]
        paid = [item for item, verdict in called if verdict is None or not verdict.defers]
        self._settle(start, batch, now, None if self.owner is None else self._costs(paid))
        if self._breaks:
            breaker = batch.lane.limits.breaker
            if any(verdict is None for _, verdict in called):
                breaker.succeeded(start.period)
            elif all(verdict.defers for _, verdict in called):
                breaker.undone(start.period)
            else:
                self._count_failure(batch.lane, start, now)
        for item, verdict in zip(batch.items, verdicts, strict=True):
            if verdict is None:
                self._answer_followers(item)

    def deferred(self, call: Work, now: float) -> None:
        """A Budget gets the cost back, and the breaker does not count the call."""
        start = self._end(call)
        self._settle(start, call, now, (0.0,) * len(start.costs))
        if self._breaks:
            call.lane.limits.breaker.undone(start.period)

    def failed(self, call: Work, is_retried: bool, now: float) -> None:
        start = self._end(call)
        self._settle(start, call, now)
        if self._breaks:
            self._count_failure(call.lane, start, now)

    def _count_failure(self, lane: Lane, start: Start, now: float) -> None:
        if lane.limits.breaker.failed(start.period, now):  # it opened
            self._recheck_later(lane)
            self.recheck(lane, now)
            self._withdraw(lane, now)

    def split(self, batch: ItemBatch) -> None:
        """Admit the halves of the batch, each as a call with its own retries."""
        self._halve(batch, 0, True)

    def _halve(self, batch: ItemBatch, attempts: int, passed: bool) -> None:
        """The first half keeps the slot. Both precede new items."""
        middle = len(batch.items) // 2
        first = ItemBatch(batch.items[:middle], attempts, batch.priority)
        second = ItemBatch(batch.items[middle:], attempts, batch.priority)
        self._admission.readmit(second)
        first.passed = passed
        self._admission.retry(first)

    def failed_for_good(self, item: Item) -> None:
        """The item has failed for good. If others follow it, the first of them is called."""
        if self._dedup is not None and (leader := self._dedup.failed(item)) is not None:
            self.leaders.append(leader)

    def _answer_followers(self, item: Item) -> None:
        if self._dedup is not None:
            self.answered += self._dedup.succeeded(item)

    def recalled(self, item: Item, now: float) -> None:
        """The recorded result of the item was found: it costs nothing, and its followers get the result."""
        self.uncalled(item, now)
        self._answer_followers(item)

    def uncalled(self, call: Work, now: float) -> None:
        """A worker took the call and did not make it, and does not give it back."""
        start = self._end(call)
        self._undo(start, now)
        if self._breaks:
            call.lane.limits.breaker.undone(start.period)

    def _end(self, call: Work) -> Start:
        """The call has left `ready` and its worker. `dispatch` rechecks its key, if that is disabled."""
        if call.lane in self._admission.paused:
            self._recheck_later(call.lane)
        return self.starts.pop(call)

    # ------------------------------------------------------------------------------------------------ keys at a limit
    def pause(self, lane: Lane, until: float, now: float) -> None:
        """Without keys the map's rates pause too, for all maps that use them."""
        self._admission.pause(lane, until)
        self._recheck_later(lane)  # where the lane has limits, the next `dispatch` ends a pause of 0 seconds
        if self.owner is not None and not self._options.keyed:
            self.owner.pause(until)
        self._withdraw(lane, now)

    def _recheck_later(self, lane: Lane) -> None:
        """Recheck the lane in the next `dispatch`, which may come later than the event."""
        if lane.limits is not None:
            self._changed[lane] = None

    def recheck(self, lane: Lane, now: float) -> None:
        """Disable the lane until all its limits allow a call, or enable it."""
        until, limits = max(lane.paused_until, lane.next_start), lane.limits
        if limits is not None:
            until = max(until, limits.until)
        if until <= now:
            self._admission.resume(lane)
            lane.pinned = False
            return
        lane.pinned = True
        self._admission.disable(lane)
        if until < lane.recheck_at:
            lane.recheck_at = until
            self.rechecks.append((until, lane))

    def _withdraw(self, lane: Lane, now: float) -> None:
        """Calls of the lane that no worker has taken go back, in their order."""
        for item in reversed(list(self.starts)):
            if item.lane is lane and self._ready.discard(item):
                self.missed(item, now)

    def breaker_open(self, item: Item) -> BreakerOpen:
        assert self._options.breaker is not None
        error = BreakerOpen(f"breaker: {self._options.breaker.failures} calls in a row failed{item.lane.shown}")
        error.__cause__ = item.last_error
        return error

    # ------------------------------------------------------------------------------------------------ the end
    def drain_lane(self, lane: Lane) -> list[Item]:
        """Take out the waiting items of a key whose breaker is open. None of them holds a slot afterwards."""
        calls = [*self._former.drain_lane(lane), *self._admission.drain_lane(lane)]
        for call in calls:
            if isinstance(call, ItemBatch):
                self._former.close(call)
        return flat(calls)

    def drain(self, now: float) -> list[Item]:
        """Take out every item whose call no worker has taken."""
        for lane in {call.lane: None for call in self.starts}:
            self._withdraw(lane, now)
        items = self.leaders + ([] if self._dedup is None else self._dedup.drain())
        self.leaders = []
        return items + flat([*self._former.drain(), *self._admission.drain()])


class AdaptiveGate(Gate):
    """The gate where `workers` is a pair: how many calls may run at once is found while the map runs."""

    def __init__(self, options: Options, admission: Admission, spent: dict[str, float]) -> None:
        super().__init__(options, admission, spent)
        self._adaptive = Adaptive(options.least, options.begins_with, options.workers)
        self.allowed = options.begins_with

    def dispatch(self, full: bool, now: float) -> None:
        super().dispatch(full, now)
        while self._adaptive.dispatched(len(self.starts)):
            self.allowed, self.grew = self._adaptive.allowed, True
            super().dispatch(full, now)

    def _start(self, call: Work, now: float) -> None:
        super()._start(call, now)
        if (start := self.starts.get(call)) is not None:
            start.halvings, start.is_overdue = self._adaptive.halvings, False

    def overdue(self, call: Work) -> None:
        self.starts[call].is_overdue = True

    def succeeded(self, item: Item, now: float) -> None:
        self._tell(self.starts[item], succeeds=True, is_too_much=False)
        super().succeeded(item, now)

    def returned(self, batch: ItemBatch, verdicts: Sequence[Any], now: float) -> None:
        is_too_much = any(verdict is not None and verdict.is_too_much for verdict in verdicts)
        self._tell(self.starts[batch], succeeds=None in verdicts, is_too_much=is_too_much)
        super().returned(batch, verdicts, now)

    def deferred(self, call: Work, now: float) -> None:
        self._tell(self.starts[call], succeeds=False, is_too_much=True)
        super().deferred(call, now)

    def failed(self, call: Work, is_retried: bool, now: float) -> None:
        self._tell(self.starts[call], succeeds=False, is_too_much=is_retried)
        super().failed(call, is_retried, now)

    def _tell(self, start: Start, *, succeeds: bool, is_too_much: bool) -> None:
        """A call has ended. is_too_much: it was deferred, or is to be tried again."""
        if is_too_much or (start.is_overdue and not succeeds):
            self._adaptive.asked_too_much(start.halvings)
            self.allowed = self._adaptive.allowed
        elif succeeds:
            self._adaptive.succeeded()


def _nobody() -> None:
    """Wakes nobody, until the runner says whom to wake."""
