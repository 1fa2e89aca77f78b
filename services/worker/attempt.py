"""One attempt of one request, from its preparation to its last piece and its last fact."""

from __future__ import annotations

import asyncio
import base64
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

from schemas.lifecycle import Lifecycle
from schemas.request import Claim
from schemas.work import ResponseError, SampledFrames, Work
from services.kv.address import Span
from services.kv.frames import FRAMES_TYPE, frames_uri, unpack_frames
from services.runtime.blobs import BlobGone, Blobs
from services.runtime.bus import Sender
from services.runtime.clock import Clock
from services.runtime.errors import BadRecord, Refused, Transient
from services.runtime.logs import get_logger
from services.runtime.metrics import AGENT_FACTS
from services.runtime.offload import run_alone
from services.runtime.refusal import cancelled, deadline_exceeded
from services.runtime.topics import LIFECYCLE
from services.worker.bindings import Bindings
from services.worker.encoder_outputs import EncoderOutputs, SentMedium
from services.worker.engine_body import EngineRequest, build, frames_to_send
from services.worker.facts import Facts
from services.worker.forward import Outcome, PostsChat, forward
from services.worker.patience import send_patiently
from services.worker.payload_room import PayloadRoom
from services.worker.reply import Reply
from services.worker.sent_prompts import SentPrompt

INLINE_BYTES = 256 << 10
"""Bodies above are built in a thread."""

ABORT_SECONDS = 5.0
"""An engine may go on with a request that was broken off for so long, and use its media."""

_log = get_logger("worker.attempt")


class Names(Protocol):
    """How the engine is told which medium it gets."""

    def uuid(self, identity: int) -> str:
        """An identity as the engine is told it."""
        ...

    def sent(self, identity: int) -> None:
        """A medium goes to the engine under this identity."""
        ...


class End(StrEnum):
    """Who ended an attempt before the engine did."""

    CLIENT = "client"
    """The client went away: it gets a final piece, if it still reads."""
    LOST = "lost"
    """Another decision won for this attempt: its answer comes from elsewhere, so ours ends without a word."""
    SHUTDOWN = "shutdown"
    """The agent stops."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What every attempt of an agent uses."""

    sender: Sender
    clock: Clock
    engine: PostsChat
    blobs: Blobs
    names: Names
    bindings: Bindings
    room: PayloadRoom
    frames: bool = False
    """Whether videos go to the engine as frames, where there are any."""
    ranks: int = 1
    outputs: Sequence[EncoderOutputs] = ()
    """By rank."""


class Attempt:
    """Runs one work order."""

    def __init__(self, work: Work, tools: Tools) -> None:
        self.work = work
        self._tools = tools
        self._facts = Facts(work)
        self._reply = Reply(tools.sender, work, asyncio.get_running_loop().call_later)
        self._output = False
        self._end: End | None = None
        self._running: asyncio.Task[Outcome] | None = None
        self._stated: list[asyncio.Task[None]] = []
        self._own_session: str | None = None

    def end(self, by: End) -> None:
        """End it now: the HTTP stream is closed, and the engine stops computing."""
        if self._end is None:
            self._end = by
            if self._running is not None:
                self._running.cancel()

    async def run(self) -> None:
        """Run it to its end. Raises nothing of its own: how it went is stated in lifecycle and in the reply."""
        late = self._tools.clock.now_ms() - self.work.deadline_ms
        if self._end is not None:
            await self._ended(self._end)
        elif late >= 0:
            await self._refuse(deadline_exceeded(late))
        else:
            await self._run(-late / 1000)

    async def _run(self, seconds: float) -> None:
        self._running = asyncio.ensure_future(self._forward())
        try:
            done, _ = await asyncio.wait([self._running], timeout=seconds)
            if not done:
                self._running.cancel()
                await asyncio.wait([self._running])
        finally:
            self._running.cancel()
        if not done:
            await self._failed(_error(deadline_exceeded(0)), retryable=False)
        elif self._running.cancelled():
            await self._ended(self._end or End.SHUTDOWN)
        else:
            await self._conclude(self._running)

    async def _conclude(self, running: asyncio.Task[Outcome]) -> None:
        problem = running.exception()
        if problem is None:
            await self._answer(running.result())
        elif isinstance(problem, BlobGone | BadRecord):
            code = problem.code if isinstance(problem, BadRecord) else "blob_gone"
            error = ResponseError(status=502, type="server_error", message=str(problem)[:500], code=code)
            await self._failed(error, retryable=False)
        elif isinstance(problem, Transient):
            error = ResponseError(status=503, type="server_error", message=str(problem)[:500], code="unavailable")
            await self._failed(error, retryable=True)
        else:
            _log.error("attempt failed", request=self.work.key, attempt=self.work.attempt, exc_info=problem)
            error = ResponseError(status=500, type="server_error", message="the agent failed", code="agent_error")
            await self._failed(error, retryable=True)

    async def _answer(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            await self._failed(outcome.error, retryable=outcome.retryable)
            return
        await self._reply.finish(outcome.text)
        await self._state(self._facts.finished(self._now(), outcome.usage))

    async def _failed(self, error: ResponseError, *, retryable: bool) -> None:
        """An error the router may heal elsewhere gets no answer from here."""
        retryable = retryable and not self._output
        if retryable:
            await self._reply.abandon()
        else:
            await self._reply.finish(error=error)
        await self._state(
            self._facts.failed(self._now(), error, retryable=retryable, before_output=not self._output)
        )

    async def _ended(self, by: End) -> None:
        if by is End.LOST:
            await self._reply.abandon()
            _log.info("attempt lost to another decision", request=self.work.key, attempt=self.work.attempt)
        elif by is End.CLIENT:
            await self._reply.finish(error=_error(cancelled()))
            await self._state(self._facts.cancelled(self._now(), before_output=not self._output))
        else:
            error = ResponseError(status=503, type="server_error", message="the worker stops", code="worker_stopping")
            await self._failed(error, retryable=True)

    async def _refuse(self, refused: Refused) -> None:
        await self._reply.finish(error=_error(refused))
        await self._state(self._facts.refused(self._now(), refused, retryable=False))

    # The engine's side

    async def _forward(self) -> Outcome:
        if self.work.media and self._tools.bindings.active:
            self._own_session = self._tools.bindings.own_session()
        async with self._tools.room.hold(claimed_bytes(self.work)):
            return await self._prepared_and_posted()

    async def _prepared_and_posted(self) -> Outcome:
        request = await self._prepare()
        rank, by_rank = self.work.dp_rank, self._tools.outputs
        if not 0 <= rank < len(by_rank):
            return await self._post(request)
        outputs, outcome = by_rank[rank], Outcome()
        sending = outputs.sending(sent_media(self.work))
        try:
            outcome = await self._post(request)
        finally:
            usage = outcome.usage
            cached = usage.cached_tokens if usage is not None else None
            whole = usage is not None and outcome.error is None
            ended = partial(outputs.answered, sending, cached, whole=whole)
            if whole:
                ended()
            else:
                asyncio.get_running_loop().call_later(ABORT_SECONDS, ended)
        return outcome

    async def _post(self, request: EngineRequest) -> Outcome:
        """Post, and be known meanwhile as what the engine's blocks may come from."""
        bindings = self._tools.bindings
        if not self.work.media or not bindings.active:
            return await forward(self._tools.engine, request, self)
        prompt = bindings.begin(sent_prompt(self.work, request.session, self._own_session))
        try:
            return await forward(self._tools.engine, request, self)
        finally:
            bindings.end(prompt)

    async def first_token(self) -> None:
        """Output has begun: a fact that waits for nobody."""
        self._output = True
        fact = self._facts.first_token(self._now())
        self._stated.append(asyncio.ensure_future(self._send(fact)))

    async def output(self, text: str) -> None:
        """A piece of a stream."""
        self._reply.write(text)
        await self._reply.room()

    async def _prepare(self) -> EngineRequest:
        work, blobs = self.work, self._tools.blobs
        body: str | bytes = work.body or ""
        if work.body_claim is not None:
            body = await blobs.get(work.body_claim)
        frames = frames_to_send(work) if self._tools.frames else {}
        claims = {index: medium.claim for index, medium in enumerate(work.media) if medium.claim is not None}
        claims |= {index: sampled.claim for index, sampled in frames.items()}
        payloads = dict(zip(claims, await asyncio.gather(*map(blobs.get, claims.values())), strict=True))
        if len(body) + sum(map(len, payloads.values())) > INLINE_BYTES:
            return await run_alone(self._build, body, claims, payloads, frames)
        return self._build(body, claims, payloads, frames)

    def _build(
        self, body: str | bytes, claims: dict[int, Claim], payloads: dict[int, bytes], frames: dict[int, SampledFrames]
    ) -> EngineRequest:
        uris = {index: _uri(claims[index], data) for index, data in payloads.items()}
        for medium in self.work.media:
            if medium.identity is not None:
                self._tools.names.sent(medium.identity)
        return build(
            self.work, body, uris, ranks=self._tools.ranks, uuid=self._tools.names.uuid, own_session=self._own_session,
            frames=next(iter(frames.values()), None),
        )  # fmt: skip

    # Facts

    async def _state(self, fact: Lifecycle) -> None:
        if self._stated:
            await asyncio.wait(self._stated)
        await self._send(fact)

    async def _send(self, fact: Lifecycle) -> None:
        AGENT_FACTS.labels(self.work.worker_id, fact.event.value).inc()
        try:
            await send_patiently(self._tools.sender, LIFECYCLE.name, fact, key=fact.key)
        except (Transient, BadRecord) as problem:
            _log.error("a fact is lost", fact=fact.event.value, request=self.work.key, error=str(problem)[:300])

    def _now(self) -> int:
        return self._tools.clock.now_ms()


def sent_media(work: Work) -> list[SentMedium]:
    """A work order's media as the engine's encoder meets them. With a LoRA they may have outputs of their own."""
    return [
        SentMedium(None if work.lora or medium.end is None else medium.identity, medium.tokens, medium.end or 0)
        for medium in work.media
    ]


def claimed_bytes(work: Work) -> int:
    """Bytes that a work order's body takes more than its record, about."""
    sizes = [max(m.claim.size if m.claim else 0, m.frames.claim.size if m.frames else 0) for m in work.media]
    return sum(sizes) * 4 // 3 + (work.body_claim.size if work.body_claim is not None else 0)


def _uri(claim: Claim, data: bytes) -> str:
    """Claimed bytes as a ``data:`` URI. Raises BadRecord for frames that are damaged."""
    if claim.content_type == FRAMES_TYPE:
        try:
            return frames_uri(unpack_frames(data))
        except ValueError as error:
            raise BadRecord("frames_damaged", f"{claim.uri}: {error}") from None
    return f"data:{claim.content_type or 'application/octet-stream'};base64,{base64.b64encode(data).decode()}"


def sent_prompt(work: Work, session: str | None, own_session: str | None) -> SentPrompt:
    """A work order as its blocks will be known by. Media whose place or name is not known could be anything."""
    spans = [
        Span(medium.end - medium.tokens, medium.tokens, medium.identity)
        for medium in work.media
        if medium.identity is not None and medium.end is not None and medium.tokens is not None
    ]
    return SentPrompt(
        array("Q", work.addresses), tuple(spans), len(spans) == len(work.media) and bool(work.addresses), session,
        session is not None and session == own_session,
    )  # fmt: skip


def _error(refused: Refused) -> ResponseError:
    return ResponseError(status=refused.status, type=refused.type, message=str(refused), code=refused.code)
