"""Messages and situations the router's tests are about, with only what matters said."""

from __future__ import annotations

from typing import Any

from schemas.decision import Decision, Position
from schemas.expanded import Expanded, MediaSpan
from schemas.lifecycle import Lifecycle, LifecycleEvent
from schemas.media import MediaItem, MediaKind
from schemas.worker import Heartbeat, Limits, Load, Worker
from services.router.deciding import Circumstances, decide
from services.router.policies import POLICIES
from services.router.situation import Parameters, SlotView
from services.router.slots import Overlap, SlotEpoch

MODEL = "qwen"
NOW_MS = 1_790_000_000_000
AT = Position(topic="kvroute.expanded.v1", partition=0, offset=7)


def chain(blocks: int, root: int = 1) -> list[int]:
    """Addresses of a prompt; prompts of different roots share nothing."""
    return [root * 1_000_000 + place for place in range(blocks)]


def expanded(request_id: str = "r1", *, tokens: int = 128, root: int = 1, **fields: Any) -> Expanded:
    fields.setdefault("addresses", {16: chain(tokens // 16, root)})
    fields.setdefault("exact_tokens", tokens)
    fields.setdefault("deadline_ms", NOW_MS + 120_000)
    return Expanded(
        request_id=request_id, model=MODEL, created_at_ms=NOW_MS, prompt_tokens=tokens, body="{}", **fields
    )  # fmt: skip


def image(offset: int, length: int, identity: int = 0xABCD, item: int = 0) -> tuple[MediaItem, MediaSpan]:
    medium = MediaItem(kind=MediaKind.IMAGE, message=0, part=item, identity=identity, forward=True)
    return medium, MediaSpan(item=item, offset=offset, length=length, identity=identity, vision_tokens=length)


def slot(name: str = "w1", *, device: int = 0, host: int = 0, disk: int = 0, epoch: int = 1, **fields: Any) -> SlotView:
    fields.setdefault("model", MODEL)
    fields.setdefault("block_size", 16)
    return SlotView(life=SlotEpoch(name, 0, epoch), overlap=Overlap(device, host, disk), **fields)


def decision(request: Expanded, *slots: SlotView, policy: str = "kv", **fields: Any) -> Decision:
    parameters = fields.pop("parameters", Parameters())
    given = Circumstances(policy=POLICIES[policy], parameters=parameters, now_ms=NOW_MS, expanded=AT, **fields)
    return decide(request, slots, given)


def fact(event: LifecycleEvent, request_id: str = "r1", attempt: int = 1, **fields: Any) -> Lifecycle:
    return Lifecycle(
        request_id=request_id, attempt=attempt, event=event, stage="agent", at_ms=NOW_MS, created_at_ms=NOW_MS, **fields
    )  # fmt: skip


def worker(name: str = "w1", *, epoch: int = 1, concurrency: int = 256, **fields: Any) -> Worker:
    fields.setdefault("block_size", 16)
    return Worker(
        worker_id=name, epoch=epoch, model=MODEL, at_ms=NOW_MS, limits=Limits(max_concurrency=concurrency), **fields
    )  # fmt: skip


def heartbeat(name: str = "w1", *, epoch: int = 1, rank: int = 0, **fields: Any) -> Heartbeat:
    load = Load(**{name: fields.pop(name) for name in ("running", "waiting", "kv_usage") if name in fields})
    return Heartbeat(worker_id=name, dp_rank=rank, epoch=epoch, at_ms=NOW_MS, load=load, **fields)
