"""One name for one thing: a word that the glossary has replaced does not return to the files that were changed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ["_lock.pxd", "_waiting.pxd", "_waiting.pyx", "_lifecycle.pxd", "_lifecycle.pyx"]
KERNELS += ["_mq.pxd", "_wp.pxd", "_ps.pxd", "_section_lock.pxd"]
ENTRIES = [
    "_entry.pxd",
    "_eq.pxd",
    "_eq_keys.pxd",
    "_eq_sorted.pxd",
    "_eq_manager.pxd",
    "_eq_cursors.pxd",
    "_eq_capacity.pxd",
    "_eq_end.pxd",
    "_eq_get.pxd",
    "_eq_put.pxd",
    "_eq_life.pxd",
    "_eq_nogil.pxd",
    "_entries.pxd",
    "_entries.pyx",
    "_orders.pyx",
]
ENTRIES += ["_subscriptions.pxd", "_subscriptions.pyx", "_consumers.pyx", "_timer.pyx", "_nogil.pyx"]
FACES = ["_multiqueue.pxd", "_multiqueue.pyx", "_int64.pxd", "_int64.pyx", "_indexqueue.pyx"]
FACES += ["_queue.pyx", "_workpool.pyx", "_pubsub.pyx", "_sections.pyx", "_timings.pyx"]
NATIVE = ["drive.c", "drive_entries.c", "drive_pool.c", "drive_pubsub.c", "kernels.h", "model/entry_suites.h"]
NATIVE += ["model/link_suites.h", "model/model.cpp", "model/pool_suites.h", "model/pubsub_suites.h"]
NATIVE += ["model/pubsub_more_suites.h", "model/pubsub_waiting_suites.h", "model/waiting_suites.h"]
NATIVE += ["model/section_suites.h"]
DONE = [
    *(ROOT / "pyx" / "manytail" / name for name in [*KERNELS, *ENTRIES, *FACES]),
    *(ROOT / "tests" / "native" / name for name in NATIVE),
    *(ROOT / "docs" / "design" / name for name in ["multiqueue.md", "entryqueue.md", "pubsub.md"]),
]

# The old word, and the word to use.
REPLACED = {
    r"\btaken_[a-z]+\(": "head_...()",
    r"\bputting_[a-z]+": "tail_...()",
    r"\bout_seen\b": "head_seq_cached",
    r"\btail_seen\b": "tail_seq_cached",
    r"\bhas_dead\b": "has_tombstones",
    r"\b(?:MT_GATE_\w+|gate)\b": "closed_flags",
    r"\bstamped\b": "timestamped",
    r"cascade\b": "propagate",
    r"\bpass(?:es)?_on": "forward",
    r"\b_?(?:enrol|withdraw)\(self, LoopWaiter": "prepare_to_wait, finish_wait",
    r"\b(?:LoopWaiter|EntryWaiter|until_posted)\b": "Waiting",
    r"\bmt_wait(?:er|list)\b": "waiter, wait_list",
    r"\bcursor_(?:open|step|close)\b": "position_open",
    r"\broom_ring\b": "not_full_ring",
    r"\bera\b": "fork_generation",
    r"\buncopyable\b": "unpicklable",
}


def replaced_words(text: str) -> list[str]:
    lines = enumerate(text.splitlines(), 1)
    return [
        f"{number}: {found[0]}   <- {new}"
        for number, line in lines
        for old, new in REPLACED.items()
        if (found := re.search(old, line))
    ]


@pytest.mark.parametrize("path", DONE, ids=lambda path: path.name)
def test_replaced_words_do_not_come_back(path):
    assert replaced_words(path.read_text()) == []


@pytest.mark.parametrize(
    "line", ["if s.gate != 0:", "n = taken_count(s)", "cdef LoopWaiter w", "# the cascade: more of them"]
)
def test_a_replaced_word_is_noticed(line):
    assert len(replaced_words(f"x = 1\n{line}\n")) == 1


@pytest.mark.parametrize(
    "line", ["if s.closed_flags != 0:", "taken = self.take(False)", "# delegate to it", "investigated"]
)
def test_common_words_are_let_be(line):
    assert replaced_words(line) == []
