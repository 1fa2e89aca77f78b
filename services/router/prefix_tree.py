"""Prompts in flight as a compressed tree of addresses, with a count per slot on every edge.

Prompts share prefixes, and an address names the whole prefix that ends there. So two prompts agree up to block k
exactly if their k-th addresses are equal, which bisection finds: adding, taking out and matching a prompt cost a few
comparisons an edge, whatever its length.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class _Edge(Generic[K]):
    """Blocks ``[start, end)`` of every prompt below it; ``prompt`` is one of them."""

    __slots__ = ("children", "counts", "end", "prompt", "start")

    def __init__(self, prompt: Sequence[int], start: int, end: int) -> None:
        self.prompt = prompt
        self.start = start
        self.end = end
        self.counts: dict[K, int] = {}
        self.children: dict[int, _Edge[K]] = {}

    def agrees(self, addresses: Sequence[int]) -> int:
        """Blocks of ``addresses``, from the root, that run along this edge. The edge's first block is among them."""
        high = min(self.end, len(addresses))
        if addresses[high - 1] == self.prompt[high - 1]:
            return high
        low = self.start + 1
        while low < high:
            middle = (low + high) >> 1
            if addresses[middle] == self.prompt[middle]:
                low = middle + 1
            else:
                high = middle
        return low


class PrefixTree(Generic[K]):
    """A multiset of (slot, prompt); ``K`` is whatever names a slot."""

    def __init__(self) -> None:
        self._root: dict[int, _Edge[K]] = {}
        self._blocks: dict[K, int] = {}

    def __bool__(self) -> bool:
        """Whether any prompt is in it."""
        return bool(self._root)

    def blocks(self, slot: K) -> int:
        """Different blocks of the slot's prompts: one that several share counts once."""
        return self._blocks.get(slot, 0)

    def add(self, slot: K, addresses: Sequence[int]) -> None:
        """Add a prompt. The list is kept, not copied: don't change it."""
        children, start = self._root, 0
        while start < len(addresses):
            edge = children.get(addresses[start])
            if edge is None:
                edge = children[addresses[start]] = _Edge(addresses, start, len(addresses))
            elif (agreed := edge.agrees(addresses)) < edge.end:
                self._split(edge, agreed)
            if slot not in edge.counts:
                self._blocks[slot] = self._blocks.get(slot, 0) + edge.end - edge.start
                edge.counts[slot] = 1
            else:
                edge.counts[slot] += 1
            children, start = edge.children, edge.end

    def remove(self, slot: K, addresses: Sequence[int]) -> None:
        """Take out a prompt that was added for this slot. Raises KeyError if it was not."""
        children, start = self._root, 0
        while start < len(addresses):
            first = addresses[start]
            edge = children[first]
            edge.counts[slot] -= 1
            if not edge.counts[slot]:
                del edge.counts[slot]
                left = self._blocks[slot] - (edge.end - edge.start)
                if left:
                    self._blocks[slot] = left
                else:
                    del self._blocks[slot]
                if not edge.counts:
                    del children[first]
            children, start = edge.children, edge.end

    def match(self, addresses: Sequence[int]) -> dict[K, int]:
        """By slot: leading blocks of a prompt that are among the slot's prompts. Slots with none are missing."""
        found: dict[K, int] = {}
        children, start = self._root, 0
        while start < len(addresses):
            edge = children.get(addresses[start])
            if edge is None:
                break
            start = edge.agrees(addresses)
            for slot in edge.counts:
                found[slot] = start
            if start < edge.end:
                break
            children = edge.children
        return found

    @staticmethod
    def _split(edge: _Edge[K], at: int) -> None:
        """Cut an edge in two. Every prompt on it runs through both halves."""
        below: _Edge[K] = _Edge(edge.prompt, at, edge.end)
        below.counts = dict(edge.counts)
        below.children = edge.children
        edge.children = {edge.prompt[at]: below}
        edge.end = at
