"""The scheduler in random worlds (`world`), and planted faults that these find."""

import inspect
import textwrap

import pytest

from manytail._maps.engine.adaptive import AdaptiveStage
from manytail._maps.engine.batched import BatchScheduler
from manytail._maps.engine.batches import Batches
from manytail._maps.engine.breaker import BreakerStage
from manytail._maps.engine.chunks import ChunkScheduler
from manytail._maps.engine.equal import EqualStage
from manytail._maps.engine.lanes import Lanes
from manytail._maps.engine.scheduler import Scheduler
from manytail._maps.engine.window import Window
from manytail._maps.engine.within import WithinStage
from manytail._maps.limits.stage import LimitsStage

from . import world


@pytest.mark.thread_unsafe(reason="pure: more threads would make the same worlds once more")
@pytest.mark.parametrize("first", range(0, 300, 100))
def test_every_promise_holds_in_random_worlds(first):
    for seed in range(first, first + 100):
        try:
            world.run(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.thread_unsafe(reason="pure: more threads would make the same worlds once more")
def test_limits_hold_in_random_worlds():
    for seed in range(150):
        try:
            world.run(seed, has_limits=True)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.thread_unsafe(reason="pure: more threads would make the same worlds once more")
def test_chunks_come_in_and_go_out_as_they_should_in_random_worlds():
    for seed in range(150):
        try:
            world.run(seed, in_chunks=True)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def named(value):
    return getattr(value, "__name__", value)


def plant(owner, method, old, new, monkeypatch):
    source = textwrap.dedent(inspect.getsource(getattr(owner, method)))
    assert old in source
    found = dict(vars(inspect.getmodule(owner)))
    inside = textwrap.indent(source.replace(old, new), "    ")  # `super()` there needs the class
    exec(f"def make(__class__):\n{inside}\n    return {method}", found)
    monkeypatch.setattr(owner, method, found["make"](owner))


def expect_found(worlds, **options):
    """That one of the first worlds breaks a promise."""
    for seed in range(worlds):
        try:
            world.run(seed, **options)
        except Exception:  # also what the broken code raises
            return
    raise AssertionError("no world has found it")


# Class, method, what is replaced, and by what.
FAULTS = [
    (Lanes, "finished", "lane.held -= 1", "pass"),
    (Lanes, "take", "lane.held += 1", "pass"),
    (Lanes, "put_back", "waiting.add_first", "waiting.add"),
    (Lanes, "admit", "lane.waiting.add(call)", "lane.waiting.add_first(call)"),
    (Lanes, "wake", "lane.paused_until > now", "False"),
    (Lanes, "take_all", "if lane.rests", "if False"),
    (Lanes, "_goes_again", "lane.held >= self._per_key", "False"),
    (BreakerStage, "before", "return Wait(state.until, of_lane=True)", "pass"),
    (BreakerStage, "undo", "self._end_wait(call.lane, state)", "pass"),
    (BreakerStage, "_succeeded", "self._end_wait(lane, state)", "pass"),
    (BreakerStage, "_failed", "self._end_wait(lane, state)", "pass"),
    (AdaptiveStage, "after", "self._refused.discard(call)", "pass"),
    (AdaptiveStage, "after", "max(self._least, self.allowed // 2)", "self.allowed // 2"),
    (Scheduler, "_start_adapting", "self.allowed = adaptive.allowed", "pass"),
    (Batches, "add", "self._lingering.pop(batch, None) is not None", "True"),
    (Batches, "add", ">= self._size", "> self._size"),
    (Batches, "close", "if self._open.get(place) is batch", "if False"),
    (Batches, "_place", "(call.lane, call.priority)", "call.lane"),
    (BatchScheduler, "_start", "self.input_ended or self.window.is_full", "False"),
    (BatchScheduler, "_take", "self.batches.close(call)", "pass"),
    (BatchScheduler, "_try", "self.lanes.finished(lane)", "pass"),
    (BatchScheduler, "_try", "self._answer(item, one, said_go)", "pass"),
    (BatchScheduler, "_choose", "if decision is GO", "if True"),
    (BatchScheduler, "_carry_out", "self._split(call, call.attempts)", "pass"),
    (BatchScheduler, "_split", "batch.members[:middle]", "batch.members[: middle - 1]"),
    (BatchScheduler, "_split", "self.lanes.again(", "self.lanes.readmit("),
    (BatchScheduler, "_judged", "self._tell(self._of_items, item, Ended.FAILED)", "pass"),
    (BatchScheduler, "_judged", "self.lanes.finished(call.lane)", "pass"),
    (BatchScheduler, "_call_again", "if not parts:", "if False:"),
    (BatchScheduler, "_call_again", "part.has_slot = number == 0", "pass"),
    (BatchScheduler, "_returned", "self._pause(batch", "(lambda *arguments: None)(batch"),
    (BatchScheduler, "_rested", "if call.has_slot", "if True"),
    (BatchScheduler, "_drain", "+ self.batches.drain(lane)", ""),
    (EqualStage, "before", "return KEEP", "return GO"),
    (EqualStage, "after", "ended not in NEVER_CALLED_AGAIN", "ended is not Ended.SUCCEEDED"),
    (EqualStage, "after", "if followers:", "if False:"),
    (Scheduler, "_fail_lane", "lane.held -= with_slot", "pass"),
    (Scheduler, "_opened", "self._fail_lane(lane, breaker)", "pass"),
    (Scheduler, "_opened", "self._effects.recall = True", "pass"),
    (EqualStage, "kept", "self._followers.clear()", "pass"),
    (WithinStage, "before", "now <= latest", "True"),
    (WithinStage, "before", "call.begin_by = min(call.begin_by, latest)", "pass"),
    (Scheduler, "_try", "call.begin_by = math.inf", "pass"),
    (Scheduler, "step", "and not effects.recall", ""),
    (Window, "read_limit", "self.taken + self.size", "self.taken + self.size + 1"),
    (Scheduler, "_arrived", "item.error is not None or item.known]", "item.error is not None]"),
    (Scheduler, "_ask", "return decision, stages[:number][::-1]", "return decision, ()"),
    (Scheduler, "_answer", "self._tell(granted, item, Ended.REFUSED)", "pass"),
    (Scheduler, "_start", "self.handed < self.allowed", "self.handed <= self.allowed"),
    (Scheduler, "_hand", "call.began = None", "pass"),
    (Lanes, "wake", "lane.rests, lane.rest_until = False, -math.inf", "lane.rests = False"),
    (Scheduler, "_carry_out", "self.lanes.finished(lane)", "pass"),
    (Scheduler, "_left", "self.handed -= 1", "pass"),
    (Scheduler, "_undo", "stage.undo(call, self._now)", "pass"),
    (Scheduler, "_recalled", "reversed(event.calls)", "event.calls"),
    (Scheduler, "_succeeded", "self.lanes.finished(item.lane)", "pass"),
    (Scheduler, "_handle", "self.handed -= ended", "pass"),
    (Scheduler, "_handle", "event.done = True", "pass"),
    (Scheduler, "_judged", "self.lanes.finished(call.lane)", "pass"),
    (Scheduler, "_judged", "self._tell_stages(call, ENDED[verdict.kind])", "pass"),
    (Scheduler, "_pause", "self._effects.recall = True", "pass"),
    (Scheduler, "_cancel_overdue", "began + timeout > self._now", "False"),
    (Scheduler, "_fail", "self.halted = True", "pass"),
    (Scheduler, "_emit_done", "elif self.failing is None", "elif False"),
    (Scheduler, "_emit_line", "not item.done", "False"),
    (Scheduler, "_emit", "if self.rules.drops", "if False"),
    (Scheduler, "_end", "if self.handed and not self.ended", "if False"),
    (Scheduler, "_end", "if self._keeps:", "if False:"),
]


FAULTS_OF_LIMITS = [
    (LimitsStage, "before", "min(call.begin_by, answer)", "now - 1"),
    (LimitsStage, "before", "isinstance(answer, Never)", "False"),
    (LimitsStage, "_wait", "Wait(answer.at, answer.of_lane)", "Wait(math.inf, answer.of_lane)"),
    (LimitsStage, "undo", "self.owner.undo", "(lambda *arguments: None)"),
    (LimitsStage, "undo", "self.owner.undo(call, now)", "self.owner.end(call, None, now)"),
    (LimitsStage, "after", "self.owner.end", "(lambda *arguments: None)"),
    (LimitsStage, "leave", "self.owner.leave()", "pass"),
    (LimitsStage, "_pass_wakes_on", "self._wake(waiter.lane)", "pass"),
]


@pytest.mark.thread_unsafe(reason="changes a class")
@pytest.mark.parametrize(("owner", "method", "old", "new"), FAULTS_OF_LIMITS, ids=named)
def test_a_planted_fault_of_limits_is_found(owner, method, old, new, monkeypatch):
    plant(owner, method, old, new, monkeypatch)
    expect_found(150, has_limits=True)


FAULTS_OF_CHUNKS = [
    (ChunkScheduler, "_tick", "min(room, len(ahead))", "len(ahead)"),
    (ChunkScheduler, "_tick", "if self._over is not None and not ahead", "if self._over is not None"),
    (ChunkScheduler, "step", "inbox.append(0)", "pass"),
    (ChunkScheduler, "_emit", "self._popped += window.taken - before", "pass"),
    (ChunkScheduler, "_count_taken", "self._popped + self._most", "self._popped + self._most + 1"),
]


@pytest.mark.thread_unsafe(reason="changes a class")
@pytest.mark.parametrize(("owner", "method", "old", "new"), FAULTS_OF_CHUNKS, ids=named)
def test_a_planted_fault_of_chunks_is_found(owner, method, old, new, monkeypatch):
    plant(owner, method, old, new, monkeypatch)
    expect_found(300, in_chunks=True)


@pytest.mark.thread_unsafe(reason="changes a class")
@pytest.mark.parametrize(("owner", "method", "old", "new"), FAULTS, ids=named)
def test_a_planted_fault_is_found(owner, method, old, new, monkeypatch):
    plant(owner, method, old, new, monkeypatch)
    expect_found(1_500)
