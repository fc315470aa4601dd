"""What `manytail.arrow` builds on: the scheduler, its runner and the options of `concurrent_map`, for items that are
rows of a batch. It imports no other private module of this package."""

from ._idempotency import encode, idempotency_key
from ._inline_runner import InlineRunner
from ._item import Item, ItemBatch, Unfit, Work, batch_result, deliver_call, note_of
from ._map import Results, cost_of, final_error, priority_of, runner_of
from ._options import Options, check, refuse_per_task
from ._remember import BulkCodec, Memory
from ._scheduler import Scheduler
from ._thread_runner import ThreadRunner
from ._workers import refuse_awaitable

__all__ = [
    "BulkCodec", "InlineRunner", "Item", "ItemBatch", "Memory", "Options", "Results", "Scheduler",
    "ThreadRunner", "Unfit", "Work", "batch_result", "check", "cost_of", "deliver_call", "encode", "final_error",
    "idempotency_key", "note_of", "priority_of", "refuse_awaitable", "refuse_per_task", "runner_of",
]  # fmt: skip
