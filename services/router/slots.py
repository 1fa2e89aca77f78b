"""The words for places a request can go to: a slot, and one life of a slot."""

from __future__ import annotations

from typing import NamedTuple


class Slot(NamedTuple):
    """One data-parallel rank of a worker."""

    worker_id: str
    dp_rank: int

    def __str__(self) -> str:
        """As decisions write it: ``worker/rank``."""
        return f"{self.worker_id}/{self.dp_rank}"


class SlotEpoch(NamedTuple):
    """One life of a slot: load and cache of an older epoch say nothing about a newer one."""

    worker_id: str
    dp_rank: int
    epoch: int

    @property
    def slot(self) -> Slot:
        """The slot, whatever its epoch."""
        return Slot(self.worker_id, self.dp_rank)


class Attempt(NamedTuple):
    """One try of one request; ``request`` is the Kafka key (tenant and request id)."""

    request: str
    number: int


class Overlap(NamedTuple):
    """Leading blocks of a prompt a slot holds: first on the device, from there on the host, from there on disk."""

    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def blocks(self) -> int:
        """Blocks of the whole chain."""
        return self.device + self.host + self.disk

    def limited(self, blocks: int) -> Overlap:
        """The first ``blocks`` of the chain: what is cut off is cut at its end."""
        device = min(self.device, blocks)
        host = min(self.host, blocks - device)
        return Overlap(device, host, min(self.disk, blocks - device - host))


NO_OVERLAP = Overlap()
