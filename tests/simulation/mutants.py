"""Faults that the simulation must find. They are planted one at a time in a file of `code.FILES`: the scheduler, a part
of it, or the virtual runner. A fault marked "was real" is a defect that the simulation found."""

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

COMPILED: dict[str, Any] = {"ledger": _ledger, "leased": _leased}


class Mutant(NamedTuple):
    name: str
    file: str  # a name in code.FILES
    old: str
    new: str
    seed: int
    shared: bool = False  # the seeds are those of worlds with shared limits

    def world(self) -> Callable[[int], Any]:
        """A function that makes the world of a seed with this fault in it."""
        change = (self.old, self.new)
        planted = {} if self.file == "world" or self.file in COMPILED else {self.file: change}
        kind, code = load("world", change).World if self.file == "world" else World, Code(planted)
        if self.shared:
            return lambda seed: shared.SharedWorld(shared.draw(seed), code)
        return lambda seed: kind(draw(seed), code)


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


# By file: the first seed that finds the fault, as `make simulate ARGS=--mutants` prints it; its name; a text that
# occurs once in the file, and what replaces it.
FAULTS: dict[str, list[tuple[int, str, str, str]]] = {
    "scheduler": [
        (15, "one failure more than max_failures is let pass",
         "too_many = self.failures > self._most_failures", "too_many = self.failures > self._most_failures + 1"),
        (485, "TooManyFailures hides a fatal error",
         "ends_alone = fatal or not too_many or isinstance(error, self._fatal_kinds)", "ends_alone = not too_many"),
        (104, "a fatal error is tried again",
         'if asked("fatal", self.options.is_fatal, error):', "if False:"),
        (485, "a batch whose error is fatal is split",
         "if verdict.fatal:\n            return self.lost(batch, verdict.error)\n        return", "return"),
        (6_626, "an error that fatal names goes on where no call raised it",
         "fatal or isinstance(error, self._fatal_kinds)", "fatal"),
        (420, "a callable is not asked about an error that no call raised",
         "if fatal is None and self._asks_fatal and not self.halted:", "if False:"),
        (1, "an item that was deferred for too long lets its key go on",
         "if verdict.pauses and not self.expired:", "if False:"),
        (216, "the breaker counts an item that was deferred for too long",
         "if verdict.defers:\n            self.gate", "if verdict.kind is Kind.DEFER:\n            self.gate"),
        (25, "an attempt that would come too late is waited for",
         "return all(self.gate.is_over(item, now + verdict.seconds) for item in call.members())", "return False"),
        (2_603, "a batch that would come too late is waited for",
         "return all(self.gate.is_over(item, now + verdict.seconds) for item in call.members())",
         "return not isinstance(call, ItemBatch) and self.gate.is_over(call, now + verdict.seconds)"),
        (5, "a dropped item keeps its place in flight",
         "window.in_flight -= len(emitted) - len(results)\n            emitted = results", "emitted = results"),
        (8, "a retry gives its slot back while it rests",
         "self.resting += len(item.members())", "    item.lane.held -= 1\n        self.resting += len(item.members())"),
        (33, "a deferral counts as an attempt", "attempts -= 1\n        item.deferred = (", "deferred = ("),
        (8, "defer sees the last deferral only", "(item.deferred or 0.0) + wait", "wait"),
        (35, "the waits of deferrals do not double", "2.0 ** min(again, 1_000)", "1.0"),
        (1, "a wait that alone is too long pauses its key",
         "seconds=0.0 if after > longest else after", "seconds=after"),
        (1, "deferrals alone keep a map going", "self._ends_deferring and now", "False and now"),
        (5, "what else happens does not keep a map going", "if happened != self._happened:", "if self._happened < 0:"),
        (59, "a deferral that would come too late is waited for",
         "not in (Kind.RETRY, Kind.DEFER)", "is not Kind.RETRY"),
        (33, "after a pause all start at once", "lane.spread = Spread", "lane.spread = None and Spread"),
        (1, "the starts after a pause are twice as near", "max(self.allowed, STEPS)", "2 * max(self.allowed, STEPS)"),
        (3_597, "a Rate and a pause both spread starts",
         "for limit in options.limits)\n        # Of", "for limit in ())\n        # Of"),
        (7, "the first of two pauses ends both", "elif each.paused_until <= now:", "else:"),
        (3, "a pause has no timer",
         "heappush(self._timers, (until, next(self._numbers), lane))\n            self", "self"),
        (5, "a resting item is not in wake_at",
         "item))\n        self.wake_at = min(self.wake_at, due)\n\n    def", "item))\n\n    def"),
        (3, "tick forgets the timeouts that are left",
         "first = next(iter(self._running.values()), math.inf)", "first = math.inf"),
        (10, "an overdue call is given up twice", "del self._running[item]\n            self", "self"),
        (2, "a call that ended in time is given up",
         "_running:\n            self._running.pop(item, None)\n        if self._delivers", "_delivers"),
        (7, "the deadline misses resting items",
         "= flat(each for _, _, each in self._timers if not isinstance(each, Lane))\n            waiting +", "+"),
        (7, "a start reported after the deadline is not given up",
         "expired:\n            self.overdue.append((item, self.deadline_exceeded()))\n        elif self.", ""),
        (7, "each arrival moves the deadline", "_deadline_at == math.inf and self.options", "options"),
        (22, "the deadline asks the queue of a map that was halted (was real)",
         "[]\n        if not self.halted", "[]\n        if True"),
        (23, "the backoff is one step ahead", "attempt - 1, 1_000", "attempt, 1_000"),
        (23, "the random factor begins at 0", "wait * (0.5 + chance / 2)", "wait * chance"),
        (8, "one call more than retries + 1",
         "if attempt > retry.times or not answer:", "if attempt > retry.times + 1 or not answer:"),
        (10, "`on` is not asked after the last attempt",
         "(attempt > retry.times and not callable(retry.on))", "attempt > retry.times"),
        (8, "what `on` defers fails with its RetryLater",
         "return self._defer(item, answer, error, chance)", "return self._defer(item, answer, answer, chance)"),
        (31, "a backoff may be infinite", "value <= sys.float_info.max", "value"),
        (46, "a huge backoff is an OverflowError (was real)", "value <= sys.float_info.max", "value < math.inf"),
        (5, "an error becomes its own cause (was real)",
         "if wrong is not error:\n                set_cause(wrong, error)\n"
         "            return Verdict(Kind.FAIL, error=wrong, f",
         "set_cause(wrong, error)\n            return Verdict(Kind.FAIL, error=wrong, f"),
        (3, "what stood behind a late item is not emitted",
         "while line and line[0].done:", "if line and line[0].done:"),
        (3, "an item is emitted before an earlier one",
         "while line and line[0].done:", "while line and line[len(line) > 3].done:"),
        (82, "results after the failed item are emitted", "elif self.failing is None:", "elif True:"),
        (0, "a failed item does not halt the map",
         "1\n"
         "            self.halted = True  # the item stays where it is in the order: nothing behind it is emitted\n"
         "        else",
         "1\n"
         "        else"),
        (102, "the window grows for a slow consumer",
         "workers and len(self.output) <= self.window.buffered", "workers"),
        (45, "the window does not grow for keys",
         "blocked = self.window.held_back + self.admission.without_slot", "blocked = self.window.held_back"),
        (576, "the window grows after the deadline (was real)", "not self.expired and self", "self"),
        (120, "an item whose call ends while its breaker is open waits (was real)",
         "None:\n            self._fail_fast", "None and verdict.kind is Kind.FAIL:\n            self._fail_fast"),
        (92_832, "who follows a result of a batch has it after the batch's failures",
         "self._apply_gate_effects()\n"
         "        self._rest_in_parts(batch, again, now)\n"
         "        for item, verdict in failed:\n"
         "            self._fail_judged(item, verdict, now)",
         "self._rest_in_parts(batch, again, now)\n"
         "        for item, verdict in failed:\n"
         "            self._fail_judged(item, verdict, now)\n"
         "        self._apply_gate_effects()"),
        (18, "a batch that fails for good is not split", "1 else [verdict]", "2 else [verdict] * len(batch.items)"),
        (1, "a batch that does not rest keeps its slot",
         "if not again and self._open:\n            self.admission.finished(batch)\n        for", "for"),
    ],
    "gate": [
        (2_152, "an item of a batch that was deferred for too long costs a budget something",
         "not verdict.defers", 'verdict.kind.value != "defer"'),
        (631, "an attempt passes the gate although the time for attempts is over",
         "over = was_called and self._within < math.inf and self.is_over(item, now)", "over = False"),
        (731, "an attempt begins although the time for attempts is over",
         "any(self.is_over(each, now) for each in self._called_before(call))", "False"),
        (2_134, "a batch begins although the time for attempts of its items is over",
         "attempts > self", "attempts > 0 == self"),
        (1, "a call of a gate after a pause does not wait for its turn", "lane.next_start = spread.at", "spread.at"),
        (205, "a deferred call begins the time for attempts anew",
         "if item.attempts == 0 and item.deferred is None:\n                    item",
         "if item.attempts == 0:\n                    item"),
        (493, "each attempt begins the time for attempts anew",
         "if item.attempts == 0 and item.deferred is None:\n                    item.first_start = now",
         "item.first_start = now"),
        (229, "a breaker that opens leaves in `ready` what no worker has taken",
         "(lane, now)\n            self._withdraw(lane, now)\n\n    def", "(lane, now)\n\n    def"),
        (192, "a deferral counts as a failure of its key",
         "undone(start.period)\n\n    def failed", "failed(start.period, 0.0)\n\n    def failed"),
        (138, "an item that comes to an open breaker waits (breaker_open)",
         "items = [item for item in items if not self._refuse_if_open(item, now)]", "items = list(items)"),
        (6, "a late start keeps its slot",
         "late = now > start.until or lane.paused_until > now", "late = lane.paused_until > now"),
        (25, "a cost rate counts starts",
         "return items[0].costs if self._options.has_costs else self._unit", "return self._unit"),
        (4, "the timer forgets the next slot",
         "self.wake_at = min(self.wake_at, self._blocked_until)\n                break", "break"),
        (188, "what did not begin gives nothing back", "(0.0,) * len(start.costs), now", "start.costs, now"),
        (98, "a key at its rate is not disabled", "limits.blocked_until = at", "self._blocked_until = at"),
        (898, "a retry beyond the budget hides fn's error",
         "error: Any = item.last_error if retried else limit.refusal(cost)", "error: Any = limit.refusal(cost)"),
        (84, "a deferred call is paid for",
         "_settle(start, call, now, (0", "_spend(start)\n        self._settle(start, call, now, (0"),
        (8, "an item that follows keeps its slot",
         "(call)\n            self._admission.finished(call)\n        elif", "(call)\n        elif"),
        (120, "who follows an item that fails without a call waits for ever (was real)",
         "self.leaders.append(leader)", "leader.lane"),
        (573, "an item that follows is forgotten at the deadline",
         "items = self.leaders + ([] if self._dedup is None else self._dedup.drain())", "items = self.leaders"),
        (51, "a batch lingers at the input's end",
         "due = math.inf if full or self._hurry else now", "due = math.inf if full else now"),
        (83, "a batch lingers in a full window",
         "due = math.inf if full or self._hurry else now", "due = math.inf if self._hurry else now"),
        (26, "a batch that starts grows on",
         "()\n        if self._batched:\n            self._former.close(call)  # type: ignore[arg-type]\n\n    def",
         "()\n\n    def"),
        (28, "half of a batch is forgotten", "self._admission.readmit(second)", "bool(second)"),
        (100, "a half begins with the attempts of its batch",
         "self._halve(batch, 0, True)", "self._halve(batch, batch.attempts, True)"),
        (188, "a deferred item of a batch is paid for", "called if verdict is None or not verdict.defers", "called"),
        (542, "what lingers is forgotten at the deadline",
         "[*self._former.drain(), *self._admission.drain()]", "self._admission.drain()"),
        (138, "a batch that was taken out after its breaker opened grows on (was real)",
         "if isinstance(call, ItemBatch):\n                self._former.close(call)", "bool(call)"),
        (35, "a timeout that is final does not halve the number",
         "if is_too_much or (start.is_overdue and not succeeds):", "if is_too_much:"),
        (171, "a call that ends as its time is over halves the number",
         "if is_too_much or (start.is_overdue and not succeeds):", "if is_too_much or start.is_overdue:"),
        (146, "a failure that is retried does not halve the number", "is_too_much=is_retried", "is_too_much=False"),
        (58, "a failure for good halves the number", "is_too_much=is_retried", "is_too_much=True"),
        (35, "a deferral does not halve the number", "is_too_much=True", "is_too_much=False"),
        (2_779, "an item of a batch that is tried again does not halve the number",
         "verdict.is_too_much", "verdict.defers"),
        (1, "the number of a pair is not obeyed", "queue, self.allowed", "queue, self._options.workers"),
        (38, "the call that the number has grown for waits for another event",
         "True\n            super().dispatch(full, now)\n\n    def", "True\n\n    def"),
    ],
    "admission": [
        (177, "what was released starts in the next pause",
         "if lane.open:\n            self._close(lane)\n        self.paused.add(lane)", "self.paused.add(lane)"),
        (42, "what was released and not taken is forgotten", "self.retry(item)\n            self.queue", "self.queue"),
        (1, "a finished item keeps its slot", "lane\n        lane.held -= 1\n        entry", "lane\n        entry"),
        (7, "a slot that comes free fills nothing", ")\n            self._fill(lane)\n\n    #", ")\n\n    #"),
        (17, "a retried item goes behind new ones of its key", "put_front(item)\n\n    def", "put(item)\n\n    def"),
        (7, "a retried item loses its priority",
         "item.lane.queues[0 if self.is_plain else item.priority]", "next(iter(item.lane.queues.values()))"),
        (106, "weights are ignored", "weight = 1 if self._weight_of is None else self._weight_of(item)", "weight = 1"),
        (24, "the key's next priority starts before its first has started",
         "if self.reports_starts and lane.unstarted and item.priority != lane.level:\n"
         "                return\n"
         "            if self._by_priority:",
         "if self._by_priority:"),
        (46, "an urgent item takes no slot from one that has not started",
         "(lane)\n"
         "        while self._by_priority and self._take_back_less_urgent(lane):\n"
         "            self._fill(lane)\n"
         "\n"
         "    def",
         "(lane)\n"
         "\n"
         "    def"),
        (1_425, "only one of several urgent items that arrive together takes a slot back (was real)",
         "(lane)\n        while", "(lane)\n        if"),
        (171, "of equally urgent items the first gives its slot back (was real)",
         "return item.priority, number", "return item.priority, -number"),
        (631, "two priorities get one label",
         "2\n            if found == below:\n                return None\n        return", "2\n        return"),
        (319, "new labels are in another order",
         "{value: (number - total // 2) * step", "{value: (number * 7 % total - total // 2) * step"),
        (24, "a lane is forgotten while its items rest",
         "if lane.assigned == lane.emitted and not lane.pinned]",
         "if not lane.pinned and not lane.waiting and not any(entry[0].qsize() for entry in lane.queues.values())]"),
        (40, "a pause forgets sub-queues that come later",
         "enabled = opened or lane not in self.paused", "enabled = True"),
        (54, "the deadline misses items without a slot", "else lane.waiting", "else ()"),
        (11, "the deadline misses items of deferred keys",
         "for queue, _ in lane.queues.values() if lane in self.paused else ():", "for queue, _ in ():"),
    ],
    "window": [
        (2, "a taken item keeps its place in flight",
         "self.in_flight -= number - counted", "self.in_flight -= max(0, number - counted - 1)"),
        (31, "the bytes of items that are emitted count on",
         "self.held_bytes -= sum([item.size for item in items])", "self.held_bytes -= 0"),
        (23, "the bytes of the buffer are not counted", "self.buffered_bytes += item.size", "self.buffered_bytes += 0"),
        (92, "the window takes no notice of bytes",
         "if self.sizeof is not None and 2 * self.bytes_in_flight() > self._window_bytes:", "if False:"),
    ],
    "world": [
        (7, "a late result is accepted",
         'self.note("late end", item.value)', 'self.report("succeeded", item, item.result)'),
    ],
    "breaker": [
        (5, "a success does not end a row of failures",
         "self._failures = 0\n            if self._probing:", "if self._probing:"),
        (192, "a probe that fails does not open the breaker again",
         "if not self._probing and self._failures < self._limit:", "if self._failures < self._limit:"),
        (170, "calls start beside the probe",
         "return math.inf if self._probing else self._until", "return self._until"),
        (170, "a call from before the breaker opened counts",
         "if period != self._period:\n            return False\n        self._failures += 1", "self._failures += 1"),
    ],
    "ledger": [
        (4, "a start after a long wait keeps its slot", "min(GRACE, now - since)", "now - since"),
        (25, "slots are too near to one another", "FOREVER)\n        if", "FOREVER) / 2\n        if"),
        (25, "an item fails though a running call may leave it room",
         "return self.settled + cost > self._amount", "return self.settled + self._reserved + cost > self._amount"),
        (25, "the budget forgets running calls",
         "fits = self.settled + self._reserved + cost <= self._amount", "fits = self.settled + cost <= self._amount"),
        (8, "a call's end keeps its permits", "self._reserved - cost if self._holds else 0.0", "self._reserved"),
    ],
    "dedup": [
        (8, "an item is called beside an equal one", "return leader is item", "return True"),
        (8, "one result too many is kept",
         "if len(self._results) > self._limit:", "if len(self._results) > self._limit + 1:"),
        (14, "after a failure all that followed are called",
         "if not followers:", "followers.clear()\n        if not followers:"),
    ],
    "batches": [
        (18, "a batch is one item too large",
         "if len(batch.items) >= self._size:", "if len(batch.items) > self._size:"),
        (1, "a batch does not linger", "if self._linger:", "if self._linger and False:"),
    ],
    "adaptive": [
        (20, "a round has one success too few", "_counted >= max", "_counted + 1 >= max"),
        (44, "more calls than the most run at once", "self.allowed), self._most)", "self.allowed), 2 * self._most)"),
        (85, "the number grows by one from the beginning", "1 if self.halvings else self.allowed", "1"),
        (35, "the number doubles after a refusal, too", "1 if self.halvings else self.allowed", "self.allowed"),
        (1, "fewer calls than the least may run at once",
         "self.allowed = max(self._least, self.allowed // 2)", "self.allowed = max(1, self.allowed // 2)"),
        (146, "each refusal of a round trip halves the number",
         "if halvings == self.halvings:", "if halvings <= self.halvings:"),
        (20, "a success counts for the number though its worker finds nothing",
         "if are_busy and self._were_busy:", "if self._were_busy:"),
        (146, "a success counts for the number though a worker was idle before it",
         "if are_busy and self._were_busy:", "if are_busy:"),
        (146, "successes count for the number while more calls run than may", "running == self", "running >= self"),
        (35, "the successes of before a halving count for the next round",
         "            self.halvings += 1\n            self._counted = 0\n", "            self.halvings += 1\n"),
        (35, "rounds are as short after a halving as before", "ROUND if self.halvings else 0", "0"),
    ],
}  # fmt: skip
# Of worlds with shared limits.
SHARED_FAULTS: dict[str, list[tuple[int, str, str, str]]] = {
    "scheduler": [
        (11_683, "an item that is found recorded is not counted as started",
         "elif item.attempts == 0:\n            self._left_ready(item)\n        if", "if"),
    ],
    "gate": [
        (71, "a call that misses its shared slot starts nevertheless",
         "late = now > start.until or lane.paused_until > now", "late = lane.paused_until > now"),
        (3, "keys that wait for their turn to ask are forgotten",
         "if self._let_next_ask(now):\n                    continue\n                self", "self"),
        (1, "keys that were answered count as asking", "self._asking -= limits.is_asking", "self._asking -= 0"),
    ],
    "leased": [
        (1, "a leased slot is taken twice", "False\n            self._tat", "True\n            self._tat"),
        (1, "slots of a lease that have passed are saved up",
         "return max(self._tat, now - max(self._credit, GRACE))", "return self._tat"),
        (2, "a lease is twice as long here as it is there", "offset, answer", "offset, 2 * answer"),
        (7, "a lease begins as soon as it comes", "answer.begin + offset", "now"),
        (102, "a lease is asked for again while it is on its way", "return not self.asked and self", "return self"),
        (29, "nobody looks when more was granted",
         "now\n            self.call_first(now, wakes)\n\n    def", "now\n\n    def"),
        (1, "who was answered counts as asking",
         "asked = False\n            self", "asked = self.asked\n            self"),
        (1, "what calls spent is told twice",
         "self.reporting, self.retry_at = 0.0, -math.inf", "self.retry_at = -math.inf"),
        (1, "what nothing uses is kept", "min(self.allotted, used)", "self.allotted"),
        (14, "a Budget's reservation is not used up by what is spent",
         "self.allotted -= spent\n        self._left -= spent", "self._left -= spent"),
        (1_043, "permits are used after their lease", "now < self.valid_until", "True"),
    ],
    "grants": [
        (16, "what is left of a Budget is told without what was reserved by the dead",
         "left = self.terms.amount - self.row.settled - over", "left = self.terms.amount - self.row.settled + over"),
        (16, "a call is granted what it needs in one limit only", "retry_at = max", "retry_at = min"),
        (25, "slots are granted far ahead", "burst - ahead", "burst - 50 * ahead"),
        (1, "a lease is given to two", "row.tat = begin + cost * self.terms.interval", "row.tat = begin"),
        (124, "a report that comes twice counts twice",
         "if ask.spent and (hold is None or hold.number != ask.number):", "if ask.spent:"),
        (14, "what is settled does not count", "row.settled - self._others", "_others"),
        (14, "others' reservations do not count", "self._others(now) - ours", "ours"),
        (29, "what the dead reserved of a Budget is free",
         "return self.is_budget or hold.expires_at > now", "return hold.expires_at > now"),
        (293, "permits of the dead are never free", "return self.is_budget or hold.expires_at > now", "return True"),
        (1, "who waits for a large part gets none", "reserved, one", "reserved, 0.0"),
    ],
}  # fmt: skip
MUTANTS = [
    Mutant(name, file, old, new, seed, faults is SHARED_FAULTS)
    for faults in (FAULTS, SHARED_FAULTS)
    for file, listed in faults.items()
    for seed, name, old, new in listed
]
