"""``kvroute worker``: who serves, and taking one out of service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import click

from schemas.control import Control, ControlKind
from schemas.types import Message
from schemas.worker import Heartbeat, Worker, WorkerState
from services.cli.broker import Broker
from services.cli.groups import SuggestingGroup
from services.cli.output import Column, Dull
from services.cli.session import Session, command_options, examples
from services.runtime.bus import Record
from services.runtime.errors import KvrouteError
from services.runtime.topics import CONTROL, HEARTBEATS, WORKERS


class UnknownWorker(KvrouteError):
    """No registration of this worker is kept."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(f"there is no worker {worker_id!r}: `kvroute worker list` shows those that registered")


class StillAlive(KvrouteError):
    """A worker that is to be retired still sends heartbeats."""

    def __init__(self, worker_id: str, age_seconds: float) -> None:
        super().__init__(
            f"worker {worker_id} sent a heartbeat {age_seconds:.0f} s ago and would take requests until its agent "
            f"stops: run `kvroute worker drain {worker_id}` and stop the agent first, or use --force"
        )


@dataclass
class Roster:
    """The newest registration of every worker and the newest heartbeat of each of its ranks."""

    workers: dict[str, Worker] = field(default_factory=dict)
    heartbeats: dict[str, dict[int, Heartbeat]] = field(default_factory=dict)

    def register(self, record: Record) -> None:
        """Take a record of the workers topic; a tombstone forgets the worker."""
        worker_id = (record.key or b"").decode("utf-8", "replace")
        if record.value is None:
            self.workers.pop(worker_id, None)
        elif (worker := _decoded(Worker, record.value)) is not None:
            self.workers[worker.worker_id] = worker

    def beat(self, record: Record) -> None:
        """Take a record of the heartbeats topic."""
        if record.value is not None and (beat := _decoded(Heartbeat, record.value)) is not None:
            self.heartbeats.setdefault(beat.worker_id, {})[beat.dp_rank] = beat

    def row(self, worker_id: str, now_ms: int, lease_seconds: float) -> dict[str, object]:
        """What is known of a worker, as one row."""
        worker = self.workers[worker_id]
        beats = [beat for beat in self.heartbeats.get(worker_id, {}).values() if beat.epoch == worker.epoch]
        age = min((now_ms - beat.at_ms for beat in beats), default=None)
        contract = worker.contract
        proofs = {"text": contract.text, "image": contract.image, "video": contract.video} if contract else {}
        return {
            "worker_id": worker.worker_id,
            "state": worker.state.value,
            "leased": age is not None and age <= lease_seconds * 1000 and all(beat.healthy for beat in beats),
            "heartbeat_age_seconds": None if age is None else age / 1000,
            "epoch": worker.epoch,
            "model": worker.model,
            "loras": worker.loras,
            "engine": f"{worker.engine} {worker.engine_version}".strip(),
            "dp_size": worker.dp_size,
            "block_size": worker.block_size,
            "proven": [name for name, proof in proofs.items() if proof.proven],
            "running": sum(beat.load.running for beat in beats),
            "waiting": sum(beat.load.waiting for beat in beats),
            "kv_usage": max((beat.load.kv_usage for beat in beats), default=None),
            "agent": worker.agent,
        }


Decoded = TypeVar("Decoded", bound=Message)


def _decoded(kind: type[Decoded], raw: bytes) -> Decoded | None:
    try:
        return kind.from_bytes(raw)
    except ValueError:
        return None


async def _read(broker: Broker) -> Roster:
    roster = Roster()
    async for record in broker.read_all(WORKERS.name):
        roster.register(record)
    async for record in broker.read_all(HEARTBEATS.name):
        roster.beat(record)
    return roster


@click.group(
    cls=SuggestingGroup,
    epilog=examples("kvroute worker list", "kvroute worker drain w1", "kvroute worker retire w1"),
)
def worker() -> None:
    """List workers and take them out of service."""


@worker.command("list", epilog=examples("kvroute worker list", "kvroute worker list --json"))
@command_options
def list_(session: Session) -> None:
    """List the workers that registered: state, lease, model, what probing proved, load as last reported."""

    async def work() -> Roster:
        async with session.broker() as broker:
            return await _read(broker)

    with session.out.working("reading registrations"):
        roster = session.run(work())
    now_ms, lease = session.wiring.now_ms(), session.settings.lease_seconds
    session.out.rows(
        [roster.row(worker_id, now_ms, lease) for worker_id in sorted(roster.workers)],
        [
            Column("worker", lambda row: row["worker_id"], whole=True),
            Column("state", lambda row: row["state"], whole=True),
            Column("lease", lambda row: row["leased"], whole=True),
            Column("heartbeat s", lambda row: row["heartbeat_age_seconds"], right=True, rank=3, whole=True),
            Column("model", lambda row: row["model"], rank=1, dull=Dull.SAME, whole=True),
            Column("engine", lambda row: row["engine"], rank=4, whole=True),
            Column("ranks", lambda row: row["dp_size"], right=True, rank=5, dull=1, whole=True),
            Column("block", lambda row: row["block_size"], right=True, rank=5, dull=Dull.SAME, whole=True),
            Column("proven", lambda row: ", ".join(row["proven"]) or "nothing"),
            Column("running", lambda row: row["running"], right=True, rank=2, whole=True),
            Column("waiting", lambda row: row["waiting"], right=True, rank=2, whole=True),
            Column("kv use", lambda row: row["kv_usage"], right=True, rank=2, whole=True),
        ],
        title="Workers",
        empty="no worker has registered: start an agent with `kvroute run agent`",
    )


@worker.command(epilog=examples("kvroute worker drain w1", 'kvroute worker drain w1 --reason "new driver"'))
@click.argument("worker_id")
@click.option("--reason", default="", help="Why, for the logs.")
@command_options
def drain(session: Session, worker_id: str, reason: str) -> None:
    """Send a worker no more requests. What it runs is finished; its agent registers as draining.

    A new start of its agent brings it back (`kvroute up`: start that anew).
    """

    async def work() -> Worker:
        async with session.broker() as broker:
            found = (await _read(broker)).workers.get(worker_id)
            if found is None:
                raise UnknownWorker(worker_id)
            order = Control(
                kind=ControlKind.DRAIN,
                at_ms=session.wiring.now_ms(),
                worker_id=worker_id,
                epoch=found.epoch,
                reason=reason[:200],
            )
            await broker.sender.send(CONTROL.name, order, key=order.key)
            return found

    found = session.run(work())
    _tell(session, worker_id, "draining", found.epoch, f"worker {worker_id} was told to drain")


@worker.command(epilog=examples("kvroute worker retire w1", "kvroute worker retire w1 --forget"))
@click.argument("worker_id")
@click.option("--force", is_flag=True, help="Even while it sends heartbeats.")
@click.option("--forget", is_flag=True, help="Remove its registration too (a tombstone).")
@command_options
def retire(session: Session, worker_id: str, force: bool, forget: bool) -> None:
    """Take a worker out for good: routers drop its cache index at once. A new start of its agent brings it back."""

    async def work() -> Worker:
        async with session.broker() as broker:
            roster = await _read(broker)
            found = roster.workers.get(worker_id)
            if found is None:
                raise UnknownWorker(worker_id)
            now_ms = session.wiring.now_ms()
            row = roster.row(worker_id, now_ms, session.settings.lease_seconds)
            age = row["heartbeat_age_seconds"]
            if row["leased"] and not force and isinstance(age, float):
                raise StillAlive(worker_id, age)
            retired = found.model_copy(update={"state": WorkerState.RETIRED, "at_ms": now_ms})
            await broker.sender.send(WORKERS.name, retired, key=worker_id)
            if forget:
                await broker.sender.send(WORKERS.name, None, key=worker_id)
            return found

    found = session.run(work())
    state = "forgotten" if forget else "retired"
    _tell(session, worker_id, state, found.epoch, f"worker {worker_id} is {state}")


def _tell(session: Session, worker_id: str, state: str, epoch: int, text: str) -> None:
    if session.out.json:
        session.out.value({"worker_id": worker_id, "state": state, "epoch": epoch})
    else:
        session.out.draw(text)
