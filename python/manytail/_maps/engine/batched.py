"""The scheduler of a map whose calls are batches (`batches.py` forms them). Here is what differs from one of items.

Stages of items (`Stage.of_items`) are asked for each item of a batch, and told of each; all others once for the call. A
batch loses the items that do not go. One that fails for good is split, and each half is called on its own. If a call
returns, each item has a verdict of its own, and those with equal ones are called again together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .batches import Batches, copies, ended_as
from .events import Returned
from .item import Batch, Call, Ended, Item, Kind, Lane, Verdict
from .scheduler import ENDED, Scheduler
from .stages import GO, Decision, Refuse, Stage


class BatchScheduler(Scheduler):
    batched = True

    def __init__(self, batches: Batches, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.batches = batches
        self._of_items = tuple(stage for stage in self.stages if stage.of_items)
        self._of_calls = self.stages[len(self._of_items) :]
        self.handed_items = 0
        self._handlers[Returned] = self._returned

    def called(self) -> int:
        return self.handed_items

    # ------------------------------------------------------------------------------------------------ calls start
    def _admit(self, items: list[Item]) -> None:
        self.lanes.admit(self.batches.add(items, self._now))

    def _start(self) -> None:
        """Before, put batches into their lanes that need not linger any longer."""
        until = math.inf if self.input_ended or self.window.is_full else self._now
        if self.batches.due < math.inf and self.batches.due <= until:
            self.lanes.admit(self.batches.release(until))
        super()._start()

    def _try(self, lane: Lane, call: Call) -> bool:
        assert isinstance(call, Batch)
        refused = self._choose(call)
        blocked = False
        if call.members:
            decision, granted = self._ask(call, self._of_calls)
            if decision is GO:
                self._hand(self._take(lane))
            else:
                blocked = self._carry_out(lane, call, decision, granted)
        else:
            self._take(lane)
            self.lanes.finished(lane)
        for item, one, said_go in refused:  # last: this may let other calls of the lane come first
            self._answer(item, one, said_go)
        return blocked or self.halted

    def _choose(self, batch: Batch) -> list[tuple[Item, Decision, Sequence[Stage]]]:
        """Ask the stages of items for each item of the batch. It loses those that do not go, which are returned."""
        asked = []
        for item in batch.members:
            item.begin_by = math.inf
            asked.append((item, *self._ask(item, self._of_items)))
        batch.members = [item for item, decision, _ in asked if decision is GO]
        batch.begin_by = min([item.begin_by for item in batch.members], default=math.inf)
        return [one for one in asked if one[1] is not GO]

    def _carry_out(self, lane: Lane, call: Call, decision: Decision, granted: Sequence[Stage]) -> bool:
        if isinstance(call, Batch) and isinstance(decision, Refuse) and decision.halves:
            self._undo(call, granted)
            self._take(lane)
            self._split(call, call.attempts)
            return False
        return super()._carry_out(lane, call, decision, granted)

    def _refused(self, call: Any, decision: Decision, granted: Sequence[Stage]) -> None:
        assert isinstance(decision, Refuse)
        self._tell(granted, call, Ended.REFUSED)
        for item, error in zip(call.members, copies(decision.error, len(call.members)), strict=True):
            self._answer(item, Refuse(error), self._of_items[::-1])

    def _undo(self, call: Call, granted: Sequence[Stage]) -> None:
        super()._undo(call, granted)
        for stage in self._of_items[::-1]:
            for item in call.items():
                stage.undo(item, self._now)

    def _take(self, lane: Lane) -> Call:
        call = super()._take(lane)
        self.batches.close(call)
        return call

    def _hand(self, call: Call) -> None:
        self.handed_items += len(call.items())
        super()._hand(call)

    def _left(self, call: Call) -> None:
        self.handed_items -= len(call.items())
        super()._left(call)

    def _readmit(self, item: Item) -> None:
        self.lanes.readmit(Batch([item]))

    def _drain(self, lane: Lane | None = None) -> list[Call]:
        waiting = super()._drain(lane)
        for call in waiting:
            self.batches.close(call)
        return waiting + self.batches.drain(lane)

    def _rested(self, call: Call) -> None:
        if call.has_slot:
            super()._rested(call)
        else:
            call.has_slot = True
            self.lanes.readmit(call)

    def _next_wake(self) -> float:
        return min(super()._next_wake(), math.inf if self.expired or self.halted else self.batches.due)

    # ------------------------------------------------------------------------------------------------ calls end
    def _judged(self, call: Batch, verdict: Verdict) -> None:
        """The call failed as a whole: it is made again as it is, or the batch is split. Or the deadline has passed: its
        items fail."""
        again, number = verdict.kind is Kind.RETRY, len(call.members)
        splits = not again and number > 1 and not self.expired
        self._tell_stages(call, Ended.RETRIED if again else Ended.FAILED)
        if again or splits:
            for item in call.members:
                item.last_error = verdict.error
                for stage in self._of_items:
                    self._tell([stage], item, Ended.RETRIED)
        if again:
            self.retried += number
            self._rest(call, verdict.seconds)
        elif splits:
            self._split(call, 0)
        else:
            self.lanes.finished(call.lane)
            for item, error in zip(call.members, copies(verdict.error, number), strict=True):
                self._tell(self._of_items, item, Ended.FAILED)
                self._fail(item, error, verdict.fatal)

    def _split(self, batch: Batch, attempts: int) -> None:
        """Its halves are called instead, before new items. The first one has its slot."""
        middle = len(batch.members) // 2
        self.lanes.readmit(Batch(batch.members[middle:], attempts))
        self.lanes.again(Batch(batch.members[:middle], attempts))

    def _returned(self, event: Returned) -> None:
        """Each item has a verdict of its own. None: it has a result."""
        batch = event.batch
        if self._delivers:
            self._book(batch)
        self._left(batch)
        ends = [
            (item, None if verdict is None else self._in_time([item], verdict))
            for item, verdict in zip(batch.members, event.verdicts, strict=True)
        ]
        batch.verdicts = verdicts = [verdict for _, verdict in ends]
        pauses = [one.seconds for one in verdicts if one and (one.pauses or one.kind is Kind.DEFER)]
        if pauses:
            self._pause(batch, self._now + max(pauses))
        self._tell_stages(batch, ended_as(verdicts))
        self._call_again(batch, ends)
        for item, verdict in ends:
            self._tell(self._of_items, item, Ended.SUCCEEDED if verdict is None else ENDED[verdict.kind])
            if verdict is None:
                self._complete(item)
            elif verdict.kind is Kind.FAIL:
                self._fail(item, verdict.error, verdict.fatal)

    def _call_again(self, batch: Batch, ends: list[tuple[Item, Verdict | None]]) -> None:
        """The first part has the slot of the batch."""
        parts: dict[tuple[Kind, float], list[Item]] = {}
        for item, verdict in ends:
            if verdict is not None and verdict.kind is not Kind.FAIL:
                self._note_end(item, verdict)
                parts.setdefault((verdict.kind, verdict.seconds), []).append(item)
        if not parts:
            self.lanes.finished(batch.lane)
        for number, ((_, seconds), items) in enumerate(parts.items()):
            part = Batch(items, batch.attempts)
            part.has_slot = number == 0
            self._rest(part, seconds)
