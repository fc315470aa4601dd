"""Topic matching: a trie of words, so that routing costs by the words of the key and the patterns that share a prefix with it, not by the bindings.

A pattern and a key are split at "."; empty words count, the empty string has no words. `*` is one word, `#` any number of them; both only as a
whole word and only in patterns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["Trie"]


class _Node:
    __slots__ = ("children", "ends", "loops")

    def __init__(self, loops: bool = False) -> None:
        self.loops = loops  # it is a "#", so that any further word may stay in it
        self.children: dict[str, _Node] = {}
        self.ends: dict[Any, int] = {}  # destination -> bindings of this pattern to it


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


class Trie:
    """Patterns and their destinations."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, pattern: str, destination: Any) -> None:
        node = self._root
        for word in _words(pattern):
            following = node.children.get(word)
            if following is None:
                following = node.children[word] = _Node(loops=word == "#")
            node = following
        node.ends[destination] = node.ends.get(destination, 0) + 1

    def remove(self, pattern: str, destination: Any) -> None:
        """Take one binding back, and the nodes that it alone needed."""
        path = [self._root]
        words = _words(pattern)
        for word in words:
            path.append(path[-1].children[word])
        ends = path[-1].ends
        ends[destination] -= 1
        if not ends[destination]:
            del ends[destination]
        while words and not path[-1].ends and not path[-1].children:
            path.pop()
            del path[-1].children[words.pop()]

    def match(self, key: str) -> Iterable[Any]:
        """The destinations of all patterns that match, each once, in no particular order."""
        words = _words(key)
        found: dict[Any, int] = {}
        states: dict[_Node, None] = {self._root: None}
        _skip_hashes(states)
        for word in words:
            states = _step(states, word)
            if not states:
                return ()
        for node in states:
            found.update(node.ends)
        return found


def _skip_hashes(states: dict[_Node, None]) -> None:
    """`#` may stand for no word at all: whoever is before one is also at it."""
    pending = list(states)
    for node in pending:
        after = node.children.get("#")
        if after is not None and after not in states:
            states[after] = None
            pending.append(after)


def _step(states: dict[_Node, None], word: str) -> dict[_Node, None]:
    """Where one more word of the key leads: a state of the pattern automaton per node, so never more than there are nodes."""
    following: dict[_Node, None] = {}
    for node in states:
        if node.loops:
            following[node] = None
        children = node.children
        if children:
            if word != "#" and word != "*" and (child := children.get(word)) is not None:
                following[child] = None
            if (child := children.get("*")) is not None:
                following[child] = None
    _skip_hashes(following)
    return following
