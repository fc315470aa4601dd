"""Faults that the simulation must find. They are planted one at a time in a file of `code.FILES`: the scheduler,
a part of it, or the virtual runner.

Each replaces one text of a source file. The text must occur exactly once, otherwise the list is out of date. `seed` is
the first that finds the fault, as `make simulate ARGS=--mutants` prints it. Faults marked "was real" are defects that
the simulation found in the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import FunctionType
from typing import Any, NamedTuple

from manytail.mapping import _leased, _ledger

from . import shared
from .code import Code, load
from .settings import draw
from .world import World


class Mutant(NamedTuple):
    """A fault: its name, and the text `old` of a source file with its replacement `new`."""

    name: str
    file: str  # a name in code.FILES
    old: str
    new: str
    seed: int
    shared: bool = False  # the seeds are those of worlds with shared limits

    def world(self) -> Callable[[int], Any]:
        """A function that makes the world of a seed with this fault in it."""
        if self.file in COMPILED:
            return self._world(Code())
        change = (self.old, self.new)
        if self.file == "world":
            changed, code = load("world", change), Code()
            return lambda seed: changed.World(draw(seed), code)
        return self._world(Code({self.file: change}))

    def _world(self, code: Code) -> Callable[[int], Any]:
        if self.shared:
            return lambda seed: shared.SharedWorld(shared.draw(seed), code)
        return lambda seed: World(draw(seed), code)


def first_seed(mutant: Mutant, seeds: Iterable[int]) -> int | None:
    """The first of the seeds whose world finds the fault."""
    world = mutant.world()
    compiled = mutant.file in COMPILED
    with planted_in_limits(mutant.file, mutant.old, mutant.new) if compiled else nullcontext():
        for seed in seeds:
            try:
                world(seed).run()
            except Exception:  # a Violation, or what the broken code itself raises
                return seed
    return None


@contextmanager
def planted_in_limits(file: str, old: str, new: str) -> Iterator[None]:
    """The ledger and the accounts of shared limits are compiled, and their classes are those of every limit: functions
    and methods are replaced in them."""
    module, copy, before = COMPILED[file], load(file, (old, new)), []
    kinds = {name: kind for name, kind in vars(module).items() if isinstance(kind, type)}
    for name, kind in kinds.items():
        theirs = vars(copy).get(name)
        setattr(copy, name, kind)
        if kind.__module__ != module.__name__ or theirs is None or issubclass(kind, tuple):
            continue
        for method, function in vars(theirs).items():
            if isinstance(function, FunctionType) and "__class__" not in function.__code__.co_freevars:
                before.append((kind, method, vars(kind)[method]))
                setattr(kind, method, function)
    try:
        yield
    finally:
        for kind, method, function in before:
            setattr(kind, method, function)


COMPILED: dict[str, Any] = {"ledger": _ledger, "leased": _leased}

MUTANTS = [
    # ------------------------------------------------------------------------------------------------ the map's failure
    Mutant("one failure more than max_failures is let pass", "scheduler",
        "        too_many = self.failures > self._most_failures\n",
        "        too_many = self.failures > self._most_failures + 1\n", 15),
    Mutant("TooManyFailures hides a fatal error", "scheduler",
        "                ends_alone = fatal or not too_many or isinstance(error, self._fatal_kinds)\n",
        "                ends_alone = not too_many\n", 485),
    Mutant("a fatal error is tried again", "scheduler",
        "        if self.options.is_fatal(error):\n            return Verdict(Kind.FAIL, error=error, fatal=True)\n",
        "", 104),
    Mutant("a batch whose error is fatal is split", "scheduler",
        "        if verdict.fatal:\n            return self.lost(batch, verdict.error)\n", "", 485),
    Mutant("an error that fatal names goes on where no call raised it", "scheduler",
        "too_many or fatal or isinstance(error, self._fatal_kinds):\n", "too_many or fatal:\n", 5_715),
    Mutant("a callable is not asked about an error that no call raised", "scheduler",
        "        if fatal is None and self._asks_fatal and not self.halted:\n", "        if False:\n", 420),
    # ------------------------------------------------------------------------------------------------ deferred too long
    Mutant("an item that was deferred for too long lets its key go on", "scheduler",
        "        if verdict.pauses and not self.expired:\n", "        if False:\n", 1),
    Mutant("the breaker counts an item that was deferred for too long", "scheduler",
        "        if verdict.defers:\n            self.gate.deferred(item, now)\n",
        "        if verdict.kind is Kind.DEFER:\n            self.gate.deferred(item, now)\n", 216),
    Mutant("an item of a batch that was deferred for too long costs a budget something", "gate",
        "if verdict is None or not verdict.defers]\n", 'if verdict is None or verdict.kind.value != "defer"]\n', 2_152),
    Mutant("a key that pauses and has no items is forgotten", "admission",
        "        lane.paused_until = max(lane.paused_until, until)\n        lane.pinned = True\n",
        "        lane.paused_until = max(lane.paused_until, until)\n", 1_689),
    # ------------------------------------------------------------------------------------------------ within
    Mutant("an attempt passes the gate although the time for attempts is over", "gate",
        "        over = item.attempts > 0 and self._within < math.inf and self.is_over(item, now)\n",
        "        over = False\n", 631),
    Mutant("an attempt begins although the time for attempts is over", "gate",
        "any(self.is_over(each, now) for each in self._called_before(call)))\n", "False)\n", 731),
    Mutant("an attempt that would come too late is waited for", "scheduler",
        "        return all(self.gate.is_over(item, now + verdict.seconds) for item in call.members())\n",
        "        return False\n", 25),
    Mutant("a batch begins although the time for attempts of its items is over", "gate",
        "        return [item for item in call.members() if item.attempts > self._batched]\n",
        "        return [item for item in call.members() if item.attempts > 0 == self._batched]\n", 2134),
    Mutant("a batch that would come too late is waited for", "scheduler",
        "        return all(self.gate.is_over(item, now + verdict.seconds) for item in call.members())\n",
        "        return not isinstance(call, Batch) and self.gate.is_over(call, now + verdict.seconds)\n", 2210),
    Mutant("each attempt begins the time for attempts anew", "gate",
        "                if item.attempts == 0:\n                    item.first_start = now\n",
        "                item.first_start = now\n", 493),
    # ------------------------------------------------------------------------------------------------ places and slots
    Mutant("a dropped item keeps its place in flight", "scheduler",
        "            window.in_flight -= len(emitted) - len(results)\n", "", 5),
    Mutant("a taken item keeps its place in flight", "window", "        self.in_flight -= number - counted\n",
        "        self.in_flight -= max(0, number - counted - 1)\n", 2),
    Mutant("a retry gives its slot back while it rests", "scheduler",
        "            self.retried += len(item.members())\n",
        "            self.retried += len(item.members())\n            item.lane.held -= 1\n", 8),
    Mutant("a finished item keeps its slot", "admission", "        lane = item.lane\n        lane.held -= 1\n",
        "        lane = item.lane\n", 1),
    Mutant("a slot that comes free fills nothing", "admission",
        "            self.secure_slot(item)\n            self._fill(lane)\n",
        "            self.secure_slot(item)\n", 7),
    # ------------------------------------------------------------------------------------------------ what starts first
    Mutant("a retried item goes behind new ones of its key", "admission",
        "self.is_plain else item.priority][0].put_front(item)", "self.is_plain else item.priority][0].put(item)", 17),
    Mutant("a retried item loses its priority", "admission",
        "item.lane.queues[0 if self.is_plain else item.priority][0]",
        "next(iter(item.lane.queues.values()))[0]", 7),
    Mutant("weights are ignored", "admission", "weight = 1 if self._weight_of is None else self._weight_of(item)",
        "weight = 1", 106),
    Mutant(
        "the key's next priority starts before its first has started",
        "admission",
        "            if self.reports_starts and lane.unstarted and item.priority != lane.level:\n"
        "                return\n",
        "",
        24,
    ),
    Mutant("an urgent item takes no slot from one that has not started", "admission",
        "        while self._by_priority and self._take_back_less_urgent(lane):\n            self._fill(lane)\n", "",
        46),
    Mutant("only one of several urgent items that arrive together takes a slot back (was real)", "admission",
        "        while self._by_priority and self._take_back_less_urgent(lane):\n",
        "        if self._by_priority and self._take_back_less_urgent(lane):\n", 1_425),
    Mutant("of equally urgent items the first gives its slot back (was real)", "admission",
        "    return item.priority, number\n", "    return item.priority, -number\n", 171),
    Mutant("two priorities get one label", "admission", "            if found == below:\n                return None\n",
        "", 631),
    Mutant("new labels are in another order", "admission", "label = (number - total // 2) * step",
        "label = (number * 7 % total - total // 2) * step", 319),
    Mutant("a lane is forgotten while its items rest", "admission",
        "if lane.assigned == lane.emitted and not lane.pinned]",
        "if not lane.pinned and not lane.waiting and not any(entry[0].qsize() for entry in lane.queues.values())]", 24),
    # ------------------------------------------------------------------------------------------------ deferred keys
    Mutant("a deferral counts as an attempt", "scheduler", "DEFER:\n            item.attempts -= 1\n", "DEFER:\n", 33),
    Mutant("defer sees the last deferral only", "scheduler",
        "(item.deferred or 0.0) + after > self.options.retry.defer:", "after > self.options.retry.defer:", 8),
    Mutant("a pause forgets sub-queues that come later", "admission", "enabled = lane not in self.paused",
        "enabled = True", 5),
    Mutant("the first of two pauses ends both", "scheduler", "                elif each.paused_until <= now:\n",
        "                else:\n", 7),
    Mutant("a pause has no timer", "scheduler",
        "            heappush(self._timers, (until, next(self._numbers), lane))\n", "", 3),
    # ------------------------------------------------------------------------------------------------ time
    Mutant("a resting item is not in wake_at", "scheduler",
        "(due, next(self._numbers), item))\n        self.wake_at = min(self.wake_at, due)\n",
        "(due, next(self._numbers), item))\n", 5),
    Mutant("tick forgets the timeouts that are left", "scheduler",
        "first = next(iter(self._running.values()), math.inf)", "first = math.inf", 3),
    Mutant("an overdue call is given up twice", "scheduler", "            del self._running[item]\n", "", 10),
    Mutant("a call that ended in time is given up", "scheduler",
        "        if self._running:\n            self._running.pop(item, None)\n", "", 2),
    Mutant("a late result is accepted", "world", '            self.note("late end", item.value)\n',
        '            self.report("succeeded", item, item.result)\n', 7),
    Mutant("the deadline misses resting items", "scheduler",
        "            waiting = flat(each for _, _, each in self._timers if not isinstance(each, Lane))\n", "", 7),
    Mutant("the deadline misses items without a slot", "admission",
        "for entry in lane.waiting] if self._by_priority else lane.waiting",
        "for entry in lane.waiting] if self._by_priority else ()", 54),
    Mutant("the deadline misses items of deferred keys", "admission",
        "lane.queues.values() if lane in self.paused else ():", "():", 11),
    Mutant("a start reported after the deadline is not given up", "scheduler",
        "        if self.expired:\n            self.overdue.append((item, self.deadline_exceeded()))\n        elif",
        "        if", 7),
    Mutant("each arrival moves the deadline", "scheduler", "if self._deadline_at == math.inf and self.options",
        "if self.options", 7),
    Mutant("the deadline asks the queue of a map that was halted (was real)", "scheduler",
        "        if not self.halted:\n            waiting =", "        if True:\n            waiting =", 22),
    # ------------------------------------------------------------------------------------------------ verdicts
    Mutant(
        "the backoff is one step ahead", "scheduler", "2.0 ** min(attempt - 1, 1_000)", "2.0 ** min(attempt, 1_000)", 23
    ),
    Mutant("the random factor begins at 0", "scheduler", "(0.5 + chance / 2)", "chance", 23),
    Mutant("one call more than retries + 1", "scheduler", "if attempt > retry.times or not answer:",
        "if attempt > retry.times + 1 or not answer:", 8),
    Mutant("`on` is not asked after the last attempt", "scheduler",
        "(attempt > retry.times and not callable(retry.on))", "attempt > retry.times", 10),
    Mutant("what `on` defers fails with its RetryLater", "scheduler", "return self._defer(item, answer, error)",
        "return self._defer(item, answer, answer)", 8),
    Mutant("a backoff may be infinite", "scheduler", "0 <= value <= sys.float_info.max:", "0 <= value:", 31),
    Mutant("a huge backoff is an OverflowError (was real)", "scheduler", "0 <= value <= sys.float_info.max:",
        "0 <= value < math.inf:", 46),
    Mutant("an error becomes its own cause (was real)", "scheduler",
        "            if wrong is not error:\n                wrong.__cause__ = error\n",
        "            wrong.__cause__ = error\n", 5),
    # ---------------------------------------------------------------------------------------- the output and the window
    Mutant("what stood behind a late item is not emitted", "scheduler", "        while line and line[0].done:\n",
        "        if line and line[0].done:\n", 3),
    Mutant("an item is emitted before an earlier one", "scheduler", "        while line and line[0].done:\n",
        "        while line and line[len(line) > 3].done:\n", 3),
    Mutant("results after the failed item are emitted", "scheduler", "        elif self.failing is None:\n",
        "        elif True:\n", 82),
    Mutant("a failed item does not halt the map", "scheduler",
        "            self.halted = True  # the item stays where it is in the order: nothing behind it is emitted\n", "",
        0),
    Mutant("the window grows for a slow consumer", "scheduler", " and len(self.output) <= self.window.buffered\n",
        "\n", 102),
    Mutant("the window does not grow for keys", "scheduler",
        "        blocked = self.window.held_back + self.admission.without_slot\n",
        "        blocked = self.window.held_back\n", 45),
    Mutant("the window grows after the deadline (was real)", "scheduler", "window.grows and not self.expired and",
        "window.grows and", 576),
    Mutant("the bytes of items that are emitted count on", "window",
        "        self.held_bytes -= sum([item.size for item in items])\n",
        "        self.held_bytes -= 0\n", 31),
    Mutant("the bytes of the buffer are not counted", "window",
        "                self.buffered_bytes += item.size\n", "                self.buffered_bytes += 0\n", 23),
    Mutant("the window takes no notice of bytes", "window",
        "self.sizeof is not None and 2 * self.bytes_in_flight() > self._window_bytes:\n", "False:\n", 92),
    # ---------------------------------------------------------------------------------------- breakers
    Mutant("a success does not end a row of failures", "breaker", "            self._failures = 0\n            if",
        "            if", 5),
    Mutant("a probe that fails does not open the breaker again", "breaker", "if not self._probing and self._failures",
        "if self._failures", 192),
    Mutant("calls start beside the probe", "breaker", "math.inf if self._probing else self._until", "self._until", 170),
    Mutant("a call from before the breaker opened counts", "breaker",
        "        if period != self._period:\n            return False\n", "", 170),
    Mutant("a breaker that opens leaves in `ready` what no worker has taken", "gate",
        "            self.recheck(lane, now)\n            self._withdraw(lane, now)\n",
        "            self.recheck(lane, now)\n", 229),
    Mutant("a deferral counts as a failure of its key", "gate",
        "            call.lane.limits.breaker.undone(start.period)\n\n    def failed",
        "            call.lane.limits.breaker.failed(start.period, 0.0)\n\n    def failed", 192),
    Mutant("an item that comes to an open breaker waits (breaker_open)", "gate",
        "            items = [item for item in items if not self._failed_fast(item, now)]\n",
        "            items = list(items)\n", 138),
    Mutant(
        "an item whose call ends while its breaker is open waits (was real)",
        "scheduler",
        "        if self.gate is not None:\n            self._fail_fast(item.lane, now)\n",
        "        if self.gate is not None and verdict.kind is Kind.FAIL:\n"
        "            self._fail_fast(item.lane, now)\n",
        120,
    ),
    # ---------------------------------------------------------------------------------------- rates
    Mutant("a late start keeps its slot", "gate", "        late = now > start.until or lane.paused_until > now\n",
        "        late = lane.paused_until > now\n", 6),
    Mutant("a cost rate counts starts", "gate",
        "            return items[0].costs if self._options.has_costs else self._unit\n",
        "            return self._unit\n", 25),
    Mutant("the timer forgets the next slot", "gate",
        "                self.wake_at = min(self.wake_at, self._blocked_until)\n", "", 4),
    Mutant("a start after a long wait keeps its slot", "ledger", "min(GRACE, now - since)", "now - since", 4),
    Mutant("slots are too near to one another", "ledger", "self._tat = slot + min(cost * self._interval, FOREVER)",
        "self._tat = slot + min(cost * self._interval, FOREVER) / 2", 25),
    Mutant("what did not begin gives nothing back", "gate", "start.costs, (0.0,) * len(start.costs), now)",
        "start.costs, start.costs, now)", 188),
    Mutant("a key at its rate is not disabled", "gate", "            limits.blocked_until = at\n",
        "            self._blocked_until = at\n", 98),
    Mutant("a retry beyond the budget hides fn's error", "gate",
        "error: Any = item.last_error if retried else limit.refusal(cost)", "error: Any = limit.refusal(cost)", 898),
    Mutant("an item fails though a running call may leave it room", "ledger",
        "        return self.settled + cost > self._amount\n",
        "        return self.settled + self._reserved + cost > self._amount\n", 25),
    # ---------------------------------------------------------------------------------------- the budget
    Mutant("the budget forgets running calls", "ledger", "self.settled + self._reserved + cost <= self._amount",
        "self.settled + cost <= self._amount", 25),
    Mutant("a call's end keeps its permits", "ledger", "self._reserved - cost if self._holds else 0.0",
        "self._reserved", 8),
    Mutant("a deferred call is paid for", "gate", 'says nothing about its key."""\n        start = self._end(call)\n',
        'says nothing about its key."""\n        start = self._end(call)\n        self._spend(start)\n', 84),
    # ---------------------------------------------------------------------------------------- equal items
    Mutant(
        "an item is called beside an equal one", "dedup", "        return leader is item\n", "        return True\n", 8
    ),
    Mutant("one result too many is kept", "dedup", "if len(self._results) > self._limit:",
        "if len(self._results) > self._limit + 1:", 8),
    Mutant("after a failure all that followed are called", "dedup", "followers.popleft()\n        if not followers:\n",
        "followers.popleft()\n        followers.clear()\n        if not followers:\n", 14),
    Mutant("an item that follows keeps its slot", "gate",
        "            self._pass(call)\n            self._admission.finished(call)\n        elif",
        "            self._pass(call)\n        elif", 8),
    Mutant("who follows an item that fails without a call waits for ever (was real)", "gate",
        "self.leaders.append(leader)", "leader.lane", 120),
    Mutant("an item that follows is forgotten at the deadline", "gate",
        " + ([] if self._dedup is None else self._dedup.drain())", "", 573),
    Mutant(
        "who follows a result of a batch has it after the batch's failures",
        "scheduler",
        "        self._apply_gate_effects()\n        self._rest_in_parts(batch, again, now)\n"
        "        for item, verdict in failed:\n            self._fail_judged(item, verdict, now)\n",
        "        self._rest_in_parts(batch, again, now)\n"
        "        for item, verdict in failed:\n            self._fail_judged(item, verdict, now)\n"
        "        self._apply_gate_effects()\n",
        92_832,
    ),
    # ---------------------------------------------------------------------------------------- batches
    Mutant("a batch is one item too large", "batches", ">= self._size:", "> self._size:", 18),
    Mutant("a batch does not linger", "batches", "                if self._linger:\n",
        "                if self._linger and False:\n", 1),
    Mutant("a batch lingers at the input's end", "gate", "math.inf if full or self._hurry else now",
        "math.inf if full else now", 51),
    Mutant("a batch lingers in a full window", "gate", "math.inf if full or self._hurry else now",
        "math.inf if self._hurry else now", 83),
    Mutant("a batch that starts grows on", "gate",
        "        if self._batched:\n            self._former.close(call)  # type: ignore[arg-type]\n", "", 26),
    Mutant("half of a batch is forgotten", "gate", "        self._admission.readmit(second)\n",
        "        bool(second)\n", 28),
    Mutant("a half begins with the attempts of its batch", "gate", "self._halve(batch, 0, True)",
        "self._halve(batch, batch.attempts, True)", 100),
    Mutant("a batch that fails for good is not split", "scheduler", "if len(batch.items) > 1 else [verdict]",
        "if len(batch.items) > 2 else [verdict] * len(batch.items)", 18),
    Mutant("a batch that does not rest keeps its slot", "scheduler",
        "        if not again and self._open:\n            self.admission.finished(batch)\n", "", 1),
    Mutant("a deferred item of a batch is paid for", "gate", " if verdict is None or not verdict.defers]", "]", 188),
    Mutant("what lingers is forgotten at the deadline", "gate",
        "flat([*self._former.drain(), *self._admission.drain()])", "flat(self._admission.drain())", 542),
    Mutant("a batch that was taken out after its breaker opened grows on (was real)", "gate",
        "            if isinstance(call, Batch):\n                self._former.close(call)\n",
        "            bool(call)\n", 138),
    # ---------------------------------------------------------------------------------------- shared limits
    Mutant("an item that is found recorded is not counted as started", "scheduler",
        "        elif item.attempts == 0:\n            self._left_ready(item)\n", "", 11_683, shared=True),
    Mutant("a call that misses its shared slot starts nevertheless", "gate",
        "        late = now > start.until or lane.paused_until > now\n", "        late = lane.paused_until > now\n", 21,
        shared=True),
    Mutant("a leased slot is taken twice", "leased", "            if not self._later:\n                return False\n",
        "            if not self._later:\n                return True\n", 1, shared=True),
    Mutant("slots of a lease that have passed are saved up", "leased",
        "        return max(self._tat, now - max(self._credit, GRACE))\n", "        return self._tat\n", 1,
        shared=True),
    Mutant("a lease is twice as long here as it is there", "leased",
        "        begin, length = answer.begin + offset, answer.granted * self._interval\n",
        "        begin, length = answer.begin + offset, 2 * answer.granted * self._interval\n", 2, shared=True),
    Mutant("a lease begins as soon as it comes", "leased", "        begin, length = answer.begin + offset, answer",
        "        begin, length = now, answer", 7, shared=True),
    Mutant("a lease is asked for again while it is on its way", "leased",
        "        return not self.asked and self.retry_at <= now and not", "        return self.retry_at <= now and not",
        102, shared=True),
    Mutant("nobody looks when more was granted", "leased",
        "            self.turn = now\n            self.call_first(wakes)\n", "            self.turn = now\n", 29,
        shared=True),
    Mutant("who was answered counts as asking", "leased", "            self.asked = False\n",
        "            self.asked = self.asked\n", 1, shared=True),
    Mutant("what calls spent is told twice", "leased", "            self.reporting, self.retry_at = 0.0, -math.inf\n",
        "            self.retry_at = -math.inf\n", 1, shared=True),
    Mutant("what nothing uses is kept", "leased",
        "        self.allotted = max(self._reserved, min(self.allotted, used))\n",
        "        self.allotted = max(self._reserved, self.allotted)\n", 1, shared=True),
    Mutant("a Budget's reservation is not used up by what is spent", "leased", "        self.allotted -= spent\n", "",
        14, shared=True),
    Mutant("permits are used after their lease", "leased", "and now < self.valid_until)\n", "and True)\n", 1_043,
        shared=True),
    Mutant("what is left of a Budget is told without what was reserved by the dead", "grants",
        "            left = self.terms.amount - self.row.settled - over\n",
        "            left = self.terms.amount - self.row.settled + over\n", 16, shared=True),
    Mutant("a call is granted what it needs in one limit only", "grants", "        retry_at = max([part",
        "        retry_at = min([part", 16, shared=True),
    Mutant("slots are granted far ahead", "grants", "self.row.tat - self.terms.burst - ahead)\n",
        "self.row.tat - self.terms.burst - 50 * ahead)\n", 25, shared=True),
    Mutant("a lease is given to two", "grants", "        row.tat = begin + cost * self.terms.interval\n",
        "        row.tat = begin\n", 1, shared=True),
    Mutant("a report that comes twice counts twice", "grants", " and (hold is None or hold.number != ask.number):\n",
        ":\n", 124, shared=True),
    Mutant("what is settled does not count", "grants", " - self.row.settled - self._others(now) - ours.reserved\n",
        " - self._others(now) - ours.reserved\n", 14, shared=True),
    Mutant("others' reservations do not count", "grants", " - self.row.settled - self._others(now) - ours.reserved\n",
        " - self.row.settled - ours.reserved\n", 14, shared=True),
    Mutant("what the dead reserved of a Budget is free", "grants",
        "        return self.is_budget or hold.expires_at > now\n", "        return hold.expires_at > now\n", 29,
        shared=True),
    Mutant("permits of the dead are never free", "grants", "        return self.is_budget or hold.expires_at > now\n",
        "        return True\n", 293, shared=True),
    Mutant("who waits for a large part gets none", "grants", " - ours.reserved, one))\n", " - ours.reserved, 0.0))\n",
        1, shared=True),
    Mutant("keys that wait for their turn to ask are forgotten", "gate",
        "                if self._let_next_ask(now):\n                    continue\n", "", 3, shared=True),
    Mutant("keys that were answered count as asking", "gate", "        self._asking -= limits.is_asking\n",
        "        self._asking -= 0\n", 1, shared=True),
    Mutant("a round has one success too few", "adaptive", "        grows = self._counted >= max(",
        "        grows = self._counted + 1 >= max(", 20),
    Mutant("more calls than the most run at once", "adaptive", " and self.allowed < self._most\n",
        " and self.allowed <= self._most\n", 38),
    Mutant("fewer calls than the least may run at once", "adaptive", "max(self._least, self.allowed // 2)",
        "max(1, self.allowed // 2)", 1),
    Mutant("each refusal of a round trip halves the number", "adaptive", "        if halvings == self.halvings:\n",
        "        if halvings <= self.halvings:\n", 146),
    Mutant("a success counts for the number though its worker finds nothing", "adaptive",
        "        if are_busy and self._were_busy:\n", "        if self._were_busy:\n", 20),
    Mutant("a success counts for the number though a worker was idle before it", "adaptive",
        "        if are_busy and self._were_busy:\n", "        if are_busy:\n", 146),
    Mutant("successes count for the number while more calls run than may", "adaptive",
        "        are_busy = running == self.allowed ", "        are_busy = running >= self.allowed ", 146),
    Mutant("the successes of before a halving count for the next round", "adaptive",
        "            self.halvings += 1\n            self._counted = 0\n", "            self.halvings += 1\n", 35),
    Mutant("rounds are as short after a halving as before", "adaptive", "ROUND if self.halvings else 0", "0", 35),
    Mutant("a timeout that is final does not halve the number", "gate", " or (start.is_overdue and not succeeds):\n",
        ":\n", 35),
    Mutant("a call that ends as its time is over halves the number", "gate",
        "        if is_too_much or (start.is_overdue and not succeeds):\n",
        "        if is_too_much or start.is_overdue:\n", 171),
    Mutant("a failure that is retried does not halve the number", "gate", "succeeds=False, is_too_much=is_retried)",
        "succeeds=False, is_too_much=False)", 146),
    Mutant("a failure for good halves the number", "gate", "succeeds=False, is_too_much=is_retried)",
        "succeeds=False, is_too_much=True)", 58),
    Mutant("a deferral does not halve the number", "gate",
        "        self._tell(self.starts[call], succeeds=False, is_too_much=True)\n",
        "        self._tell(self.starts[call], succeeds=False, is_too_much=False)\n", 35),
    Mutant("an item of a batch that is tried again does not halve the number", "gate",
        "verdict.is_called_again for verdict", "verdict.defers for verdict", 533),
    Mutant("the number of a pair is not obeyed", "gate",
        "        queue, allowed = self._admission.queue, self.allowed\n",
        "        queue, allowed = self._admission.queue, self._options.workers\n", 1),
    Mutant("the call that the number has grown for waits for another event", "gate",
        "            self.allowed, self.grew = self._adaptive.allowed, True\n            super().dispatch(full, now)\n",
        "            self.allowed, self.grew = self._adaptive.allowed, True\n", 38),
]
