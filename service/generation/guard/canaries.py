"""Canaries are given strings: this module finds all of them in a text that grows, in one pass (Aho and Corasick 1975).
It knows no actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from service.generation.guard.patterns import plain
from service.generation.guard.rules import Span


@dataclass(slots=True)
class _Node:
    """A prefix of some string, `depth` characters long; `fallback` is its longest proper suffix that is a prefix,
    too."""

    depth: int = 0
    following: dict[str, _Node] = field(default_factory=dict)
    fallback: _Node | None = None
    lengths: list[int] = field(default_factory=list)
    """The lengths of the strings that end here, longest first."""


class Canaries:
    """The strings, compared as `plain` writes them, otherwise character by character."""

    def __init__(self, strings: Iterable[str]) -> None:
        self.root = _Node()
        for each in strings:
            self._add(plain(each))
        self._link()

    def _add(self, text: str) -> None:
        node = self.root
        for depth, character in enumerate(text, 1):
            node = node.following.setdefault(character, _Node(depth))
        node.lengths = [len(text)]

    def _link(self) -> None:
        waiting = deque([self.root])
        while waiting:
            node = waiting.popleft()
            for character, child in node.following.items():
                fallback = node.fallback
                while fallback is not None and character not in fallback.following:
                    fallback = fallback.fallback
                child.fallback = self.root if fallback is None else fallback.following[character]
                child.lengths = [*child.lengths, *child.fallback.lengths]
                waiting.append(child)


class CanaryScanner:
    """One sequence's search."""

    def __init__(self, canaries: Canaries) -> None:
        self.certain = 0
        self._root = self._node = canaries.root

    def scan(self, text: str, at: int, new: int, final: bool) -> list[Span]:
        found, node, root = list[Span](), self._node, self._root
        for place in range(new, len(text)):
            character = text[place]
            while character not in node.following and node.fallback is not None:
                node = node.fallback
            node = node.following.get(character, root)
            found += [(at + place + 1 - length, at + place + 1) for length in node.lengths]
        self._node = node
        self.certain = at + len(text) - (0 if final else node.depth)
        return found
