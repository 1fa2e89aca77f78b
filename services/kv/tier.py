"""Where a block's keys and values lie. The order is the order of cost: device is free to reuse, disk is dear."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """A level of a worker's KV cache."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


TIERS = (Tier.DEVICE, Tier.HOST, Tier.DISK)
