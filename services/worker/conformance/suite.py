"""The checks, one after the other. Each says what was expected and what was seen; none stops the others."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from schemas.media import MediaKind
from schemas.worker import Contract, ModalityContract
from services.kv.tier import Tier
from services.layout.view import View
from services.runtime.offload import run_in_thread
from services.worker.bindings import Binding
from services.worker.clips import Clip, mp4_uri
from services.worker.conformance.bench import Bench, Ran
from services.worker.conformance.chats import FILLER, IMAGE, OTHER_IMAGE, Chat, Medium, chat, image, text_of
from services.worker.conformance.report import Check, Outcome
from services.worker.engine import EngineError
from services.worker.matching import Answer, difference, within_bounds
from services.worker.probes import Subject, Videos, prove
from services.worker.slot import Watch
from services.worker.video_probes import as_frames, shape_of

CLIP = Clip(8, 112, 168)

_A = {"image": "an image", "video": "a video"}

Restart = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Limits:
    """How far the checks may go. ``restart`` restarts the engine and returns when it is up again."""

    eviction_blocks: int = 4096
    restart: Restart | None = None


@dataclass
class Suite:
    """All checks of one engine."""

    bench: Bench
    subject: Subject
    limits: Limits = field(default_factory=Limits)
    random: random.Random = field(default_factory=random.Random)
    contract: Contract | None = None

    async def run(self) -> AsyncIterator[Check]:
        """Run them. What an engine refuses is a failed check, not the end."""
        async for check in self._contract():
            yield check
        for name, chats in self._series():
            yield await self._as_predicted(name, chats)
        yield await self._streamed()
        yield await self._other_medium()
        for each in (self._replay, self._cleared, self._eviction, self._restart):
            try:
                yield await each()
            except EngineError as error:
                yield Check(each.__name__.strip("_"), Outcome.FAILED, "the engine answers", str(error))

    # The contract

    async def _contract(self) -> AsyncIterator[Check]:
        answers: list[Answer] = []
        bench, subject = self.bench, self.subject
        contract = self.contract = await prove(
            bench.engine, bench.layout.layouter, subject, Watch([bench.slot]), self._identity(), heard=answers.append,
            bindings=bench.bindings,
        )  # fmt: skip
        bench.bindings.settle((contract.image.binding, contract.video.binding))
        if contract.video.proven and bench.family is not None:
            bench.family = bench.family.chosen(video=contract.video.variant)
        kept = {id(answer) for kind in MediaKind for answer in within_bounds(_of_kind(answers, kind))[0]}
        for answer in answers:
            yield await self._probe(answer, bound=bool(answer.probe.shapes) and id(answer) not in kept)
        for modality in ("text", "image", "video"):
            found: ModalityContract = getattr(contract, modality)
            yield from_contract(modality, found, self._has(modality))
            if found.proven and modality != "text":
                yield _known_again(modality, found)
        if subject.videos is not None and subject.videos.frames:
            expected, found = "taken, laid out as the video, and known again", contract.video
            yield _check("videos as frames", found.frames, expected, found.detail or _way(found))

    async def _probe(self, answer: Answer, *, bound: bool) -> Check:
        probe = answer.probe
        layouter = self.bench.layout.layouter
        body = {name: value for name, value in probe.body.items() if name != "media_io_kwargs"}
        view: View = await run_in_thread(partial(layouter.view, body, probe.shapes, family=self.bench.family))
        expected = f"{len(view.token_ids)} tokens" if view.exact else f"refused: {view.detail}"
        if bound:
            return Check(f"probe: {probe.name}", Outcome.SKIPPED, expected, f"too much for it: {answer.refusal}")
        parted = difference(answer, view)
        seen = f"{len(answer.tokens)} tokens, equal" if answer.tokens is not None else f"refused: {answer.refusal}"
        return _check(f"probe: {probe.name}", parted is None, expected, parted or seen)

    # What the cache holds

    def _series(self) -> Iterator[tuple[str, list[Chat]]]:
        """Each a list of chats, run one after the other: all must end as predicted."""
        model, mark = self.subject.model, self._mark
        yield "text", [chat(model, text_of(120, mark()))]
        asked = chat(model, text_of(150, mark()))
        yield "text, repeated", [asked, asked]
        salted = text_of(90, mark())
        yield "salt: two salts and none share nothing", [
            chat(model, salted, salt=salt) for salt in (f"{mark()}-a", f"{mark()}-b", None)
        ]
        yield "several turns", self._turns()
        for lora in self.bench.facts.loras[:1]:
            adapted = text_of(90, mark())
            yield "LoRA adapter", [chat(model, adapted, lora=name) for name in (lora, None)]
        if self._proven("image"):
            first, second = self._image(), self._image(OTHER_IMAGE)
            text = text_of(40, mark())
            yield "image", [chat(model, text, [first])]
            yield "image, repeated", [chat(model, text, [first])] * 2
            yield "image, salted", [chat(model, text, [first], salt=mark())] * 2
            yield "two images", [chat(model, text, [self._image(), second])] * 2
            yield "two images in one block", [chat(model, text, [self._tiny(), self._tiny()])] * 2
        if self._proven("video") and self.subject.videos is not None:
            yield "video", [chat(model, text_of(40, mark()), [self._video(self.subject.videos)])] * 2
            if self.contract is not None and self.contract.video.frames:
                yield "video as frames", [self._as_frames(self.subject.videos)] * 2
            both = [self._image(), self._video(self.subject.videos)]
            if self._proven("image") and self._together():
                yield "image and video", [chat(model, text_of(40, mark()), both)] * 2

    def _turns(self) -> list[Chat]:
        model, first = self.subject.model, text_of(100, self._mark())
        answered = [{"role": "user", "content": first}, {"role": "assistant", "content": FILLER}]
        return [chat(model, first), chat(model, text_of(60, "And then"), before=answered)]

    async def _as_predicted(self, name: str, chats: list[Chat]) -> Check:
        expected, seen, passed = [], [], True
        for number, each in enumerate(chats):
            try:
                ran = await self.bench.run(each)
            except EngineError as error:
                return Check(f"events: {name}", Outcome.FAILED, "the engine answers", str(error))
            if not number or not ran.as_expected or number == len(chats) - 1:
                expected.append(ran.expected)
                seen.append(ran.seen)
            passed = passed and ran.as_expected
        return _check(f"events: {name}", passed, "; then ".join(expected), "; then ".join(seen))

    async def _streamed(self) -> Check:
        try:
            ran = await self.bench.run(chat(self.subject.model, text_of(100, self._mark())), stream=True)
        except EngineError as error:
            return Check("events: streamed answer", Outcome.FAILED, "the engine answers", str(error))
        return _of(ran, "events: streamed answer")

    async def _other_medium(self) -> Check:
        """The worst that could happen: one image's KV answers for another's."""
        name = "another image of the same size gets nothing of the first"
        if not self._proven("image"):
            return Check(name, Outcome.SKIPPED, "", "images are not proven")
        if self.contract is not None and self.contract.image.binding == Binding.TOKENS:
            return Check(name, Outcome.SKIPPED, "", "known by tokens: of prompts alike within a minute none is claimed")
        text = text_of(40, self._mark())
        try:
            await self.bench.run(chat(self.subject.model, text, [self._image()]))
            return _of(await self.bench.run(chat(self.subject.model, text, [self._image()])), name)
        except EngineError as error:
            return Check(name, Outcome.FAILED, "the engine answers", str(error))

    # The stream of events

    async def _replay(self) -> Check:
        name, expected = "replay from the beginning", "the same addresses as followed live"
        slot = self.bench.another_slot()
        try:
            await slot.begin()
            found = frozenset(slot.translator.resident.published(Tier.DEVICE))
            live = self.bench.held
            if not slot.publisher.complete:
                return Check(name, Outcome.SKIPPED, expected, "the engine replays only a part of its past")
            return _check(name, found == live, f"{len(live)} addresses", f"{len(found)}, {len(found & live)} the same")
        finally:
            slot.close()

    async def _cleared(self) -> Check:
        name = "reset of the prefix cache"
        if not await self.bench.engine.reset_prefix_cache():
            return Check(name, Outcome.SKIPPED, "", "no /reset_prefix_cache (vLLM: VLLM_SERVER_DEV_MODE=1)")
        ran = await self.bench.run(chat(self.subject.model, text_of(60, self._mark())))
        due = set(ran.predicted.addresses)
        return _check(
            name, ran.after == due and ran.cached_tokens in (None, 0), f"{len(due)} addresses, none from before",
            f"{len(ran.after)} addresses, {len(ran.after & due)} of them due",
        )  # fmt: skip

    async def _eviction(self) -> Check:
        name, facts = "eviction", self.bench.facts
        blocks = facts.num_blocks
        if blocks is None or blocks > self.limits.eviction_blocks:
            return Check(
                name, Outcome.SKIPPED, "",
                f"the cache has {blocks or 'an unknown number of'} blocks: start the engine with fewer "
                f"(vLLM: --num-gpu-blocks-override), or allow more (--eviction-blocks)",
            )  # fmt: skip
        tokens = max(4 * facts.block_size, min(blocks * facts.block_size // 12, (facts.max_model_len or 4096) // 2))
        count = blocks * facts.block_size * 5 // (tokens * 4) + 2
        chats = [chat(self.subject.model, text_of(tokens, self._mark())) for _ in range(count)]
        last = None
        for each in [*chats, chats[-1], chats[0], chats[-2], chats[count // 2]]:
            last = await self.bench.run(each)
            due = last.predicted.cached_tokens(set(last.before))
            if not set(last.predicted.addresses) <= last.after or last.cached_tokens not in (None, due):
                return Check(name, Outcome.FAILED, last.expected, last.seen)
        asked = [len((await self.bench.predict(each)).addresses) for each in chats]
        evicted = sum(asked) - len(self.bench.held)
        return _check(
            name, evicted > 0 and len(self.bench.held) <= blocks,
            f"at most {blocks} blocks held; of what is asked again, cached what is still held",
            f"{count} prompts, {len(self.bench.held)} blocks held, cached as predicted",
        )  # fmt: skip

    async def _restart(self) -> Check:
        name, expected = "restart of the engine", "it is noticed, and the cache counts as empty"
        if self.limits.restart is None:
            return Check(name, Outcome.SKIPPED, expected, "nothing was given to restart it with (--restart COMMAND)")
        await self.limits.restart()
        bench = self.bench
        text = chat(self.subject.model, text_of(60, self._mark()))
        await bench.engine.complete(text.body)
        predicted = await bench.predict(text)
        noticed = await bench.noticed()
        slot = bench.another_slot()
        try:
            await slot.begin()
            held = slot.translator.resident.published(Tier.DEVICE)
            right = noticed and held == set(predicted.addresses) and slot.publisher.complete
            return _check(
                name, right, f"{expected}: then {len(predicted.addresses)} addresses",
                f"{'noticed' if noticed else 'not noticed'}, {len(held)} addresses",
            )  # fmt: skip
        finally:
            slot.close()

    # Small things

    def _has(self, modality: str) -> bool:
        return modality == "text" or (self.subject.lays_images if modality == "image" else bool(self.subject.videos))

    def _proven(self, modality: str) -> bool:
        return self.contract is not None and bool(getattr(self.contract, modality).proven)

    def _together(self) -> bool:
        family = self.bench.family
        shapes = [self._image().shape, shape_of(CLIP, self.subject.videos.sampling)] if self.subject.videos else []
        return family is not None and not family.unprovable(shapes, side_by_side=False)

    def _identity(self) -> int:
        return self.random.getrandbits(64)

    def _mark(self) -> str:
        return f"{self._identity():016x}"

    def _image(self, size: tuple[int, int] = IMAGE) -> Medium:
        return image(self._identity(), size, shade=self.random.randrange(256))

    def _tiny(self) -> Medium:
        return image(self._identity(), (28, 28), shade=self.random.randrange(256))

    def _video(self, videos: Videos) -> Medium:
        return Medium(mp4_uri(CLIP), shape_of(CLIP, videos.sampling), self._identity())


    def _as_frames(self, videos: Videos) -> Chat:
        uri, said = as_frames(CLIP, videos.sampling)
        medium = Medium(uri, shape_of(CLIP, videos.sampling), self._identity())
        return chat(self.subject.model, text_of(40, self._mark()), [medium], media_io_kwargs={"video": said})


def from_contract(modality: str, found: ModalityContract, has: bool) -> Check:
    """The line of a modality's contract."""
    name, expected = f"contract: {modality}", "exactly one layout fits all answers"
    if not has:
        return Check(name, Outcome.SKIPPED, expected, found.detail or "the model has none")
    bounds = [
        f"up to {found.max_pixels} pixels" if found.max_pixels is not None else "",
        f"up to {found.max_items} in a prompt" if found.max_items is not None else "",
        f"frames by {found.sampling}" if found.sampling else "",
    ]
    seen = ", ".join(filter(None, [found.variant, *bounds]))
    return _check(name, found.proven, expected, seen if found.proven else found.detail or "")


def _known_again(modality: str, found: ModalityContract) -> Check:
    name, expected = f"uuid of {_A[modality]}", "it comes back verbatim in the events, or changed and known again"
    if found.verbatim_identity is None:
        return Check(name, Outcome.FAILED, expected, found.detail or "not observed")
    return _check(name, found.verbatim_identity or bool(found.binding), expected, found.detail or _way(found))


def _way(found: ModalityContract) -> str:
    return f"known by {found.binding}" if found.binding else "verbatim"


def _of_kind(answers: list[Answer], kind: MediaKind) -> list[Answer]:
    return [answer for answer in answers if answer.probe.shapes and answer.probe.shapes[0].kind is kind]


def _of(ran: Ran, name: str) -> Check:
    return _check(name, ran.as_expected, ran.expected, ran.seen)


def _check(name: str, passed: bool, expected: str, seen: str) -> Check:
    return Check(name, Outcome.PASSED if passed else Outcome.FAILED, expected, seen)
