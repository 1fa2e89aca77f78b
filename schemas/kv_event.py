"""``kvroute.kv-events.v1``: what a slot's cache gained and lost, in addresses."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from schemas.types import Hex64, Int64, Message, Part, U64List, WorkerId
from services.kv.tier import Tier


class KvOp(StrEnum):
    """A change of a tier's resident set."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"


class KvChange(Part):
    """Addresses that became or ceased to be resident in a tier; ``cleared`` empties the tier."""

    op: KvOp
    tier: Tier = Tier.DEVICE
    addresses: U64List = Field(default_factory=list)


class KvSnapshot(Part):
    """One part of a slot's whole resident set. Parts stand in consecutive seqs with nothing between."""

    id: Int64
    part: Int64 = Field(ge=0)
    parts: Int64 = Field(ge=1)
    tier: Tier = Tier.DEVICE
    addresses: U64List = Field(default_factory=list, description="at most 60,000")


class Resident(Part):
    """Size and XOR of a tier's resident set after a record: a cheap proof that nothing was missed."""

    count: Int64 = Field(ge=0)
    xor: Hex64


class KvEvents(Message):
    """One record of a slot's stream: either changes or a snapshot part. ``seq`` 0 is a snapshot."""

    SCHEMA: ClassVar[str] = "kv-events.v1"

    worker_id: WorkerId
    dp_rank: Int64 = 0
    epoch: Int64
    seq: Int64 = Field(ge=0)
    model: str
    block_size: Int64 = Field(gt=0)
    changes: list[KvChange] = Field(default_factory=list)
    snapshot: KvSnapshot | None = None
    resident: dict[Tier, Resident] | None = Field(default=None, description="missing on all but a snapshot's last part")
    unknown: Int64 = Field(default=0, description="engine blocks that have no address, so far")
    complete: bool = Field(default=True, description="false: the agent started beside a living engine and knows a part")
    hybrid: bool = Field(
        default=False, description="the engine keeps several cache groups: what is resident here is an upper bound"
    )
