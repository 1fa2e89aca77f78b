"""Which slots hold which blocks: address → bit mask of slots, one table a tier, one index per model and block size.

Matching gallops. That is right only where every slot's set, over all tiers, is prefix-closed (a block is there only
if all blocks before it are): agents publish nothing else. On a set with holes it may answer too much; a slot known
to have missed events is marked uncertain for that reason (slot_stream.py).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from services.kv.tier import TIERS, Tier
from services.router.slots import Overlap

SLICE = 8192
"""Addresses handled in one go, about 3 ms: longer work is done in slices so that an event loop can breathe."""

_RANK = {tier: rank for rank, tier in enumerate(TIERS)}
_DEVICE = _RANK[Tier.DEVICE]


class Resident:
    """One slot's membership in the tables: its bit, and per tier how many addresses, their XOR, and a journal.

    The journal names every address stored since it was last compacted, so that leaving the tables costs as much as
    the slot holds and not as much as the index holds.
    """

    __slots__ = ("bit", "count", "journal", "number", "xor")

    def __init__(self, number: int) -> None:
        self.number = number
        self.bit = 1 << number
        self.count = [0] * len(TIERS)
        self.xor = [0] * len(TIERS)
        self.journal = [array("Q") for _ in TIERS]

    def proof(self, tier: Tier) -> tuple[int, int]:
        """Count and XOR of the addresses in a tier."""
        rank = _RANK[tier]
        return self.count[rank], self.xor[rank]

    def blocks(self) -> int:
        """Addresses in all tiers together; one in two tiers counts twice."""
        return sum(self.count)


class PrefixIndex:
    """The index of one model and block size."""

    def __init__(self) -> None:
        self._tables: tuple[dict[int, int], ...] = tuple({} for _ in TIERS)
        self._visible = 0
        self._tiered = 0
        self._free: list[int] = []
        self._next = 0
        self._leaving: deque[Resident] = deque()

    def __len__(self) -> int:
        """Entries of all tiers, those still to be swept included."""
        return sum(len(table) for table in self._tables)

    # -- slots ---------------------------------------------------------------------------------------------------

    def join(self, *, visible: bool = True) -> Resident:
        """A new empty membership. Invisible ones are filled first (a snapshot) and shown when they are whole."""
        if self._free:
            resident = Resident(self._free.pop())
        else:
            resident = Resident(self._next)
            self._next += 1
        if visible:
            self.show(resident)
        return resident

    def show(self, resident: Resident) -> None:
        """From now on matches answer with this membership."""
        self._visible |= resident.bit

    def leave(self, resident: Resident) -> None:
        """Mask the membership at once. Its entries go by ``sweep``; its bit is not given out again before that."""
        self._visible &= ~resident.bit
        self._leaving.append(resident)

    @property
    def to_sweep(self) -> int:
        """Journal entries of retired memberships, still to be visited."""
        return sum(len(journal) for resident in self._leaving for journal in resident.journal)

    def sweep(self, limit: int = SLICE) -> bool:
        """Visit up to ``limit`` entries of retired memberships. True while something is left."""
        while self._leaving:
            resident = self._leaving[0]
            for rank in range(len(TIERS)):
                limit = self._drop_tail(resident, rank, limit)
                if resident.journal[rank]:
                    return True
            self._leaving.popleft()
            self._tiered &= ~resident.bit
            self._free.append(resident.number)
        return False

    # -- contents ------------------------------------------------------------------------------------------------

    def store(self, resident: Resident, tier: Tier, addresses: Sequence[int]) -> None:
        """Add addresses to a tier; those already there change nothing."""
        rank = _RANK[tier]
        table, bit = self._tables[rank], resident.bit
        get = table.get
        added, xor = 0, resident.xor[rank]
        for address in addresses:
            mask = get(address)
            if mask is None:
                table[address] = bit
            elif mask & bit:
                continue
            else:
                table[address] = mask | bit
            added += 1
            xor ^= address
        if added:
            resident.count[rank] += added
            resident.xor[rank] = xor
            resident.journal[rank].extend(addresses)
            if rank != _DEVICE:
                self._tiered |= bit
            if len(resident.journal[rank]) > 3 * resident.count[rank] + 8 * SLICE:
                self._compact(resident, rank)

    def remove(self, resident: Resident, tier: Tier, addresses: Sequence[int]) -> None:
        """Take addresses out of a tier; those not there change nothing."""
        rank = _RANK[tier]
        table, bit = self._tables[rank], resident.bit
        get = table.get
        removed, xor = 0, resident.xor[rank]
        for address in addresses:
            mask = get(address, 0)
            if mask & bit:
                if mask == bit:
                    del table[address]
                else:
                    table[address] = mask ^ bit
                removed += 1
                xor ^= address
        resident.count[rank] -= removed
        resident.xor[rank] = xor
        if removed and rank != _DEVICE and not any(resident.count[_DEVICE + 1 :]):
            self._tiered &= ~bit

    def clear(self, resident: Resident, tier: Tier) -> Iterator[None]:
        """Empty a tier, the newest first so that the rest stays prefix-closed. Yields between slices."""
        rank = _RANK[tier]
        while resident.journal[rank]:
            self._drop_tail(resident, rank, SLICE)
            if resident.journal[rank]:
                yield
        resident.count[rank] = resident.xor[rank] = 0
        if not any(resident.count[_DEVICE + 1 :]):
            self._tiered &= ~resident.bit

    def addresses(self, resident: Resident, tier: Tier) -> set[int]:
        """The addresses a membership has in a tier (for tests and inspection; costs as much as the slot holds)."""
        rank = _RANK[tier]
        table, bit = self._tables[rank], resident.bit
        return {address for address in resident.journal[rank] if table.get(address, 0) & bit}

    def _drop_tail(self, resident: Resident, rank: int, limit: int) -> int:
        """Remove up to ``limit`` journal entries from the end. Returns what is left of the limit."""
        journal = resident.journal[rank]
        taken = min(limit, len(journal))
        if taken:
            tail = journal[-taken:]
            del journal[-taken:]
            tail.reverse()
            self.remove(resident, TIERS[rank], tail)
        return limit - taken

    def _compact(self, resident: Resident, rank: int) -> None:
        """Forget journal entries that are gone or doubled. The order of first storing stays."""
        table, bit = self._tables[rank], resident.bit
        kept = dict.fromkeys(address for address in resident.journal[rank] if table.get(address, 0) & bit)
        resident.journal[rank] = array("Q", kept)

    # -- matching ------------------------------------------------------------------------------------------------

    def match(self, addresses: Sequence[int]) -> dict[int, Overlap]:
        """Overlap of a prompt with every slot that holds its first block, by the membership's number."""
        found: dict[int, Overlap] = {}
        chained: list[tuple[int, int]] = []
        for slots, blocks in self._ends(addresses):
            if tiered := slots & self._tiered:
                chained.append((tiered, blocks))
                slots ^= tiered
            if slots:
                overlap = Overlap(blocks)
                for number in _numbers(slots):
                    found[number] = overlap
        if chained:
            self._chains(addresses, chained, found)
        return found

    def _ends(self, addresses: Sequence[int]) -> list[tuple[int, int]]:
        """(slots, blocks) pairs: which slots' prefixes, over all tiers, end after how many blocks. Each slot once."""
        if not addresses:
            return []
        holders = self._holders()
        last = len(addresses) - 1
        ends: list[tuple[int, int]] = []
        low, held = 0, holders(addresses[0], 0) & self._visible
        while held and low < last:
            high = min(2 * low + 1, last)
            further = holders(addresses[high], 0) & held
            if further != held:
                self._bisect(addresses, holders, (low, held, high, further), ends)
            low, held = high, further
        if held:
            ends.append((held, last + 1))
        return ends

    def _holders(self) -> Callable[[int, int], int]:
        """Address → slots that hold it in any tier."""
        device, host, disk = (table.get for table in self._tables)
        if not self._tiered:
            return device
        return lambda address, none: device(address, none) | host(address, none) | disk(address, none)

    @staticmethod
    def _bisect(
        addresses: Sequence[int],
        holders: Callable[[int, int], int],
        bracket: tuple[int, int, int, int],
        ends: list[tuple[int, int]],
    ) -> None:
        """Find where the slots that hold ``low`` but not ``high`` end. Each probe serves all of them."""
        todo = [bracket]
        while todo:
            low, at_low, high, at_high = todo.pop()
            while high - low > 1:
                middle = (low + high) >> 1
                at_middle = (holders(addresses[middle], 0) & at_low) | at_high
                if at_middle == at_high:
                    high = middle
                elif at_middle == at_low:
                    low = middle
                else:
                    todo.append((middle, at_middle, high, at_high))
                    high, at_high = middle, at_middle
            ends.append((at_low ^ at_high, high))

    def _chains(self, addresses: Sequence[int], ends: list[tuple[int, int]], found: dict[int, Overlap]) -> None:
        """Walk slots that use several tiers block by block: one tier alone need not be prefix-closed.

        An engine reads its device first, goes on from there in host memory, from there on disk, and never back.
        """
        slots = 0
        for mask, _ in ends:
            slots |= mask
        tables = tuple(table.get for table in self._tables)
        walking = [slots, 0, 0]
        turned: list[dict[int, int]] = [{}, {}, {}]
        for block in range(max(blocks for _, blocks in ends)):
            address = addresses[block]
            for rank, get in enumerate(tables):
                if (walkers := walking[rank]) and (fallen := walkers & ~get(address, 0)):
                    walking[rank] ^= fallen
                    for number in _numbers(fallen):
                        turned[rank][number] = block
                    if rank + 1 < len(tables):
                        walking[rank + 1] |= fallen
            if not any(walking):
                break
        whole = max(blocks for _, blocks in ends)
        for number in _numbers(slots):
            device = turned[0].get(number, whole)
            host = turned[1].get(number, whole)
            disk = turned[2].get(number, whole)
            found[number] = Overlap(device, host - device, disk - host)


_BITS_OF_BYTE = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))


@lru_cache(maxsize=1024)
def _numbers(mask: int) -> tuple[int, ...]:
    """Positions of the set bits, lowest first. Remembered: the same slots hold the same prefixes again and again."""
    data = mask.to_bytes((mask.bit_length() + 7) >> 3, "little")
    return tuple(place * 8 + bit for place, byte in enumerate(data) if byte for bit in _BITS_OF_BYTE[byte])
