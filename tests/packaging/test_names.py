"""One name for one thing: a word that the glossary has replaced does not return to the core."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [path for folder in ("pyx/manytail", "tests/native", "docs/design") for path in (ROOT / folder).rglob("*.*")]
OF_MAPS = "mapping.md"  # their gate is another thing

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


def test_replaced_words_do_not_come_back():
    texts = {path.name: path.read_text() for path in FILES if path.suffix != ".pyc" and path.name != OF_MAPS}
    assert {name: words for name, text in texts.items() if (words := replaced_words(text))} == {}


def test_a_replaced_word_is_noticed_and_common_ones_are_let_be():
    for line in ("if s.gate != 0:", "n = taken_count(s)", "cdef LoopWaiter w", "# the cascade: more of them"):
        assert len(replaced_words(f"x = 1\n{line}\n")) == 1, line
    for line in ("if s.closed_flags != 0:", "taken = self.take(False)", "# delegate to it", "investigated"):
        assert replaced_words(line) == [], line
