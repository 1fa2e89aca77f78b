"""The set of addresses a slot publishes: always closed under prefixes.

A block is published only while all its ancestors are resident in some tier, so whoever finds an address in the set
knows that the whole prefix is there, and may search it by galloping. The change log keeps the set closed after every
single address: parents are stored before children, children removed before parents.

Most of what happens between two records happens in the device tier alone. Of such a stretch only what is left of it is
told, first what was stored, then what was removed: what came and went again is nobody's business, and two long lists
are cheaper for everybody than a hundred short ones. The set stays closed: what is stored at the end of the stretch has
its parents there since before it or above it in the list; what is gone lost its children before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.kv_event import KvOp
from services.kv.tier import TIERS, Tier

_INDEX = {tier: index for index, tier in enumerate(TIERS)}


@dataclass(slots=True)
class Change:
    """Addresses that a tier gained or lost, in this order; CLEARED empties the tier."""

    op: KvOp
    tier: Tier
    addresses: list[int]


class _Node:
    __slots__ = ("held", "parent", "published")

    def __init__(self, parent: int | None) -> None:
        self.parent = parent
        self.held = [0] * len(TIERS)
        self.published = False


class ResidentSet:
    """Which addresses are held in which tier, and which of them are published.

    ``add`` and ``remove`` count: an address may be held by several engine blocks of the same content.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._children: dict[int, set[int]] = {}
        self._published: tuple[set[int], ...] = tuple(set() for _ in TIERS)
        self._xor = [0] * len(TIERS)
        self._log: list[Change] = []
        self._logged = 0
        self._stored: dict[int, None] = {}
        self._removed: dict[int, None] = {}
        """What is left of the device tier's changes since the last one in the log, in order."""

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def pending(self) -> int:
        """Addresses that changed since the last drain (a cleared tier counts one)."""
        return self._logged + len(self._stored) + len(self._removed)

    def published(self, tier: Tier) -> set[int]:
        """The addresses published in a tier (the live set: not to be changed)."""
        return self._published[_INDEX[tier]]

    def xor(self, tier: Tier) -> int:
        """XOR of the addresses published in a tier."""
        return self._xor[_INDEX[tier]]

    def add(self, address: int, parent: int | None, tier: Tier) -> None:
        """One more engine block with this address is resident in a tier; ``parent`` is the prefix before it."""
        index = _INDEX[tier]
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = _Node(parent)
            if parent is not None:
                siblings = self._children.get(parent)
                if siblings is None:
                    self._children[parent] = {address}
                else:
                    siblings.add(address)
            if address not in self._children:
                # The common case, by far: a new block at the end of its chain.
                node.held[index] = 1
                if parent is None or ((above := self._nodes.get(parent)) is not None and above.published):
                    node.published = True
                    self._store(address, index)
                return
        node.held[index] += 1
        if node.held[index] > 1:
            return
        if node.published:
            self._store(address, index)
        elif node.parent is None or self._is_published(node.parent):
            self._publish(address, node)

    def remove(self, address: int, tier: Tier) -> None:
        """One engine block with this address left a tier. Raises KeyError when none was there."""
        index = _INDEX[tier]
        node = self._nodes[address]
        held = node.held
        count = held[index]
        if not count:
            raise KeyError(f"address {address:016x} is not held in tier {tier}")
        held[index] = count - 1
        if count > 1:
            return
        if any(held):
            if node.published:
                self._drop(address, index)
            return
        if node.published:
            if address in self._children:
                for descendant in reversed(self._family(address)[1:]):
                    self._withdraw(descendant)
            self._drop(address, index)
        self._forget(address, node)

    def clear(self) -> None:
        """Nothing is resident any more."""
        self._nodes.clear()
        self._children.clear()
        for index, tier in enumerate(TIERS):
            if self._published[index]:
                self._published[index].clear()
                self._xor[index] = 0
                self._seal()
                self._log.append(Change(KvOp.CLEARED, tier, []))
                self._logged += 1

    def drain(self) -> list[Change]:
        """What changed since the last call, in order."""
        self._seal()
        log, self._log, self._logged = self._log, [], 0
        return log

    def _seal(self) -> None:
        """Write down what is left of the device tier's changes."""
        for op, addresses in ((KvOp.STORED, self._stored), (KvOp.REMOVED, self._removed)):
            if addresses:
                self._log.append(Change(op, TIERS[0], list(addresses)))
                self._logged += len(addresses)
                addresses.clear()

    def _is_published(self, address: int) -> bool:
        node = self._nodes.get(address)
        return node is not None and node.published

    def _family(self, address: int) -> list[int]:
        """The address and its resident descendants, parents first."""
        family = [address]
        for member in family:
            family.extend(self._children.get(member, ()))
        return family

    def _publish(self, address: int, node: _Node) -> None:
        for member in self._family(address):
            found = node if member == address else self._nodes[member]
            found.published = True
            for index, count in enumerate(found.held):
                if count:
                    self._store(member, index)

    def _withdraw(self, address: int) -> None:
        node = self._nodes[address]
        node.published = False
        for index, count in enumerate(node.held):
            if count:
                self._drop(address, index)

    def _forget(self, address: int, node: _Node) -> None:
        del self._nodes[address]
        if node.parent is not None:
            siblings = self._children[node.parent]
            siblings.discard(address)
            if not siblings:
                del self._children[node.parent]

    def _store(self, address: int, index: int) -> None:
        self._published[index].add(address)
        self._xor[index] ^= address
        if index:
            self._record(KvOp.STORED, index, address)
        elif address in self._removed:
            del self._removed[address]
        else:
            self._stored[address] = None

    def _drop(self, address: int, index: int) -> None:
        self._published[index].discard(address)
        self._xor[index] ^= address
        if index:
            self._record(KvOp.REMOVED, index, address)
        elif address in self._stored:
            del self._stored[address]
        else:
            self._removed[address] = None

    def _record(self, op: KvOp, index: int, address: int) -> None:
        self._seal()
        self._logged += 1
        log = self._log
        if log:
            last = log[-1]
            if last.op is op and last.tier is TIERS[index]:
                last.addresses.append(address)
                return
        log.append(Change(op, TIERS[index], [address]))
