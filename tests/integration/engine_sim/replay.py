"""Plays a recording's requests against a simulated engine and notes what it said and announced."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import zmq
import zmq.asyncio

from services.engine_sim.config import SimConfig
from services.engine_sim.request import EngineRequest
from services.engine_sim.server import SimEngine
from tests.unit.engine_sim.recorded import Renamed, payloads, recording

MODELS = Path(__file__).parents[2] / "models"


@dataclass
class Played:
    """One case, both sides; batches and identifiers renamed."""

    case: dict[str, Any]
    recorded: list[Any]
    simulated: list[Any]
    status: int
    response: Any


@dataclass
class Player:
    """Sends the cases one after another, with what the recorded model said put into the engine's mouth."""

    engine: SimEngine
    media: Path
    said: list[int]
    recorded: Renamed = field(default_factory=Renamed)
    simulated: Renamed = field(default_factory=Renamed)
    sequence: int = 0

    async def play(self, case: dict[str, Any], session: aiohttp.ClientSession) -> Played:
        self.said[:] = generated_ids(case["response"])
        body = self._mine(case["request"])
        async with session.post(f"{self.engine.http_url}{case['path']}", json=body) as response:
            answer = await response.json(content_type=None)
        sent = await replayed(self.engine.replay_endpoint, self.sequence)
        assert [sequence for sequence, _ in sent] == list(range(self.sequence, self.sequence + len(sent)))
        self.sequence += len(sent)
        return Played(
            case,
            [self.recorded.batch(payload) for payload in payloads(case)],
            [self.simulated.batch(payload) for _, payload in sent],
            response.status,
            answer,
        )

    def _mine(self, value: Any) -> Any:
        """The request with the recorded engine's names for media replaced by this one's, files by those at hand."""
        if isinstance(value, dict):
            return {key: self._mine(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [self._mine(entry) for entry in value]
        if isinstance(value, str) and value.startswith("file://media/"):
            return f"file://{self.media}/{value.removeprefix('file://media/')}"
        if isinstance(value, str) and len(value) == 64:
            return self.simulated.original(self.recorded.identifier(value))
        return value


def generated_ids(response: Any) -> list[int]:
    choices = response.get("choices") if isinstance(response, dict) else None
    return list(choices[0]["token_ids"]) if choices else []


async def replayed(endpoint: str, start: int) -> list[tuple[int, bytes]]:
    """What an engine's replay socket gives from a sequence number on."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(endpoint)
        await dealer.send_multipart([b"", start.to_bytes(8, "big")])
        batches = []
        while True:
            _, _, sequence, payload = await dealer.recv_multipart()
            number = int.from_bytes(sequence, "big", signed=True)
            if number < 0:
                return batches
            batches.append((number, payload))


async def _play_all(name: str, model: str, folder: Path) -> list[Played]:
    loaded = recording(name)
    for file, content in loaded["media"].items():
        (folder / file).write_bytes(base64.b64decode(content["b64"]))
    said: list[int] = []

    def sampler(request: EngineRequest) -> int:
        return said[request.output_tokens]

    config = SimConfig(
        MODELS / model,
        served_name=loaded["model"],
        speedup=float("inf"),
        max_num_seqs=8,
        max_model_len=8192,
        num_blocks=1000,
        allowed_local_media_path=folder,
        trust_request_mm_kwargs=True,
    )
    async with SimEngine(config, sampler=sampler) as engine, aiohttp.ClientSession() as session:
        player = Player(engine, folder, said)
        return [await player.play(case, session) for case in loaded["cases"]]


def play_all(name: str, model: str, folder: Path) -> dict[str, Played]:
    """Every case of a recording, in its order, by name."""
    return {played.case["case"]: played for played in asyncio.run(_play_all(name, model, folder))}


def names(name: str) -> Iterator[str]:
    return (case["case"] for case in recording(name)["cases"])
