"""`Retry(within=...)`: no attempt at an item starts later than that after its first one did. The item fails with its
last error, at its turn at the latest; the scheduler fails it at once if its next attempt would be due too late."""

from __future__ import annotations

from .item import Call, Item
from .stages import GO, Decision, Refuse, Stage


class WithinStage(Stage):
    __slots__ = ("_within",)

    of_items = paces = True

    def __init__(self, within: float) -> None:
        super().__init__()
        self._within = within

    def before(self, call: Call, now: float) -> Decision:
        assert isinstance(call, Item)
        if not (call.attempts or call.deferrals):
            call.first_start = now
            return GO
        latest = call.first_start + self._within
        call.begin_by = min(call.begin_by, latest)
        if now <= latest:
            return GO
        return Refuse(call.deferral_error if call.last_error is None else call.last_error)
