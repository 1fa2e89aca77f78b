"""Changed identifiers: bound when it is certain whose they are, left out when it is not, never bound wrongly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kv.address import Span, addresses
from services.kv.identity import engine_uuid
from services.kv.tier import Tier
from services.worker.bindings import Binding, Bindings
from services.worker.engines.events import Batch, Cause, Event, Stored
from services.worker.engines.vllm_keys import KeyReader
from services.worker.sent_prompts import KEEP_SECONDS, KEPT_PROMPTS, SentPrompt
from services.worker.translate import Translator

SIZE = 4
PAD = 99
A, B, C = 0xA, 0xB, 0xC


@dataclass(frozen=True)
class Chat:
    """A prompt as an engine computes it: its token ids, and where which medium stands."""

    tokens: tuple[int, ...]
    spans: tuple[Span, ...]

    @property
    def addresses(self) -> list[int]:
        return addresses(self.tokens, SIZE, self.spans)


def chat(*media: int, text: int = 1, before: int = 3, length: int = 6) -> Chat:
    """Text, then each medium with one token of text after it, then text up to the end of a block and beyond."""
    tokens, spans = [text] * before, []
    for identity in media:
        spans.append(Span(len(tokens), length, identity))
        tokens += [PAD] * length + [text]
    tokens += [text] * (2 * SIZE - len(tokens) % SIZE)
    return Chat(tuple(tokens), tuple(spans))


def changed(identity: int) -> str:
    """What the engine calls a medium that it was sent under an identity: a hash of it."""
    return f"blake3-of-{engine_uuid(identity)}"


@dataclass
class Time:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Engine:
    """Announces a chat's blocks as vLLM does, under names that its agent does not know."""

    bindings: Bindings
    translator: Translator
    time: Time
    hashes: dict[tuple[object, ...], int] = field(default_factory=dict)
    reader: KeyReader = field(default_factory=lambda: KeyReader(placeholders=frozenset({PAD})))

    def event(self, asked: Chat, first: int, last: int, session: str | None, names: Sequence[str]) -> Stored:
        tokens = list(asked.tokens[first * SIZE : last * SIZE])
        keys = [
            [
                [name, span.offset - block * SIZE]
                for name, span in zip(names, asked.spans, strict=True)
                if span.offset < (block + 1) * SIZE and block * SIZE < span.offset + span.length
            ] or None
            for block in range(first, last)
        ]  # fmt: skip
        read = self.reader.read(
            keys, None, root=first == 0, token_ids=tokens, block_size=SIZE, blocks=last - first
        )
        hashes = [self._hash(asked, names, block) for block in range(first, last)]
        parent = self._hash(asked, names, first - 1) if first else None
        return Stored(list(hashes), parent, tokens, SIZE, keys=read, session=session)

    def _hash(self, asked: Chat, names: Sequence[str], block: int) -> int:
        key = (asked.tokens[: (block + 1) * SIZE], *names)
        return self.hashes.setdefault(key, len(self.hashes) + 1)

    def announce(
        self, asked: Chat, session: str | None = None, *, steps: Sequence[int] = (), names: Sequence[str] = (),
        late: float = 0.0,
    ) -> None:  # fmt: skip
        """``steps``: where chunks of prefill end. ``late``: seconds between the engine's step and our reading."""
        whole = len(asked.tokens) // SIZE
        bounds = [0, *steps, whole]
        named = names or [changed(span.identity) for span in asked.spans]
        for first, last in pairwise(bounds):
            events: list[Event] = [self.event(asked, first, last, session, named)]
            self.translator.apply(Batch(self.time.now - late + 5.0, events))

    @property
    def held(self) -> set[int]:
        return self.translator.resident.published(Tier.DEVICE)

    def holds(self, asked: Chat) -> bool:
        return self.held.issuperset(asked.addresses)


@pytest.fixture
def engine() -> Engine:
    time = Time()
    bindings = Bindings(time)
    bindings.renew()
    return Engine(bindings, Translator(SIZE, media=bindings), time)


def settled(engine: Engine, way: str) -> Engine:
    engine.bindings.settle([way])
    return engine


def sent(
    engine: Engine, asked: Chat, session: str | None = None, *, own: bool = False, whole: bool = True
) -> SentPrompt:
    return engine.bindings.begin(SentPrompt(asked.addresses, asked.spans, whole, session, own))


def sent_alone(engine: Engine, asked: Chat, *, whole: bool = True) -> tuple[SentPrompt, str]:
    session = engine.bindings.own_session()
    return sent(engine, asked, session, own=True, whole=whole), session


class TestBySession:
    def test_an_own_session_says_whose_a_changed_name_is(self, engine: Engine) -> None:
        settled(engine, "session")
        _, session = sent_alone(engine, chat(A))
        engine.announce(chat(A), session)
        assert engine.holds(chat(A))
        assert (engine.bindings.how(A), engine.bindings.bound, engine.translator.unknown) == (Binding.SESSION, 1, 0)

    def test_chunks_of_one_prompt_and_several_media_are_bound_one_after_the_other(self, engine: Engine) -> None:
        settled(engine, "session")
        asked = chat(A, B, A)
        _, session = sent_alone(engine, asked)
        engine.announce(asked, session, steps=[1, 2, 4])
        assert engine.holds(asked)

    def test_two_of_the_same_tokens_at_once_are_told_apart(self, engine: Engine) -> None:
        settled(engine, "session")
        (_, one), (_, other) = sent_alone(engine, chat(A)), sent_alone(engine, chat(B))
        engine.announce(chat(B), other)
        assert engine.holds(chat(B))
        assert not engine.holds(chat(A))
        engine.announce(chat(A), one)
        assert engine.holds(chat(A))

    def test_a_name_once_known_needs_no_prompt(self, engine: Engine) -> None:
        settled(engine, "session")
        prompt, session = sent_alone(engine, chat(A))
        engine.announce(chat(A), session)
        engine.bindings.end(prompt)
        engine.time.now += 10 * KEEP_SECONDS
        engine.announce(chat(A, text=2))
        assert engine.holds(chat(A, text=2))

    @pytest.mark.parametrize("session", [None, "somebody's", "~0123456789abcdef-1"])
    def test_somebody_elses_request_binds_nothing_however_like_ours(self, engine: Engine, session: str | None) -> None:
        settled(engine, "session")
        sent_alone(engine, chat(A))
        engine.announce(chat(A), session, names=["theirs"])
        assert engine.held == set()
        assert engine.translator.unaddressed == {Cause.UNBOUND_MEDIA: len(chat(A).addresses)}

    def test_what_does_not_stand_where_it_was_predicted_binds_nothing(self, engine: Engine) -> None:
        settled(engine, "session")
        _, session = sent_alone(engine, chat(A))
        for other in (chat(A, text=7), chat(A, before=2), chat(A, length=7), chat(A, B)):
            engine.announce(other, session)
            assert engine.bindings.bound == 0

    def test_a_medium_without_identity_costs_what_follows_it_only(self, engine: Engine) -> None:
        settled(engine, "session")
        asked = chat(A, B)
        known = Chat(asked.tokens[: 2 * SIZE], asked.spans[:1])
        _, session = sent_alone(engine, known, whole=False)
        engine.announce(asked, session, steps=[2], names=[changed(A), "content-hash"])
        assert engine.held == set(known.addresses)

    def test_a_clients_session_is_not_one_request_so_they_must_agree(self, engine: Engine) -> None:
        settled(engine, "session")
        sent(engine, chat(A), "client")
        sent(engine, chat(B), "client")
        engine.announce(chat(B), "client")
        assert engine.bindings.bound == 0
        assert engine.translator.unaddressed == {Cause.AMBIGUOUS_MEDIA: len(chat(B).addresses)}
        sent(engine, chat(C, text=5), "client")
        engine.announce(chat(C, text=5), "client")
        assert engine.holds(chat(C, text=5))


class TestByTokens:
    def test_the_only_prompt_that_explains_an_event_says_whose_it_is(self, engine: Engine) -> None:
        settled(engine, "tokens")
        sent(engine, chat(A))
        sent(engine, chat(B, text=2))
        sent(engine, chat(C, length=7))
        for asked in (chat(A), chat(B, text=2), chat(C, length=7)):
            engine.announce(asked)
            assert engine.holds(asked)

    def test_two_that_explain_it_alike_are_no_doubt(self, engine: Engine) -> None:
        settled(engine, "tokens")
        sent(engine, chat(A, B))
        sent(engine, chat(A, B))
        engine.announce(chat(A, B), steps=[1])
        assert engine.holds(chat(A, B))

    def test_two_of_the_same_tokens_are_bound_to_neither(self, engine: Engine) -> None:
        settled(engine, "tokens")
        sent(engine, chat(A))
        sent(engine, chat(B))
        engine.announce(chat(A))
        engine.announce(chat(B))
        assert (engine.held, engine.bindings.bound) == (set(), 0)
        assert engine.bindings.refused == {Cause.AMBIGUOUS_MEDIA: 2}

    def test_one_that_ended_a_moment_ago_counts_as_well(self, engine: Engine) -> None:
        settled(engine, "tokens")
        engine.bindings.end(sent(engine, chat(A)))
        sent(engine, chat(B))
        engine.time.now += KEEP_SECONDS / 3
        engine.announce(chat(A), late=1.0)
        assert engine.bindings.bound == 0

    def test_a_prompt_with_media_nobody_knows_could_be_anything(self, engine: Engine) -> None:
        settled(engine, "tokens")
        sent(engine, chat(A))
        sent(engine, Chat((), ()), whole=False)
        engine.announce(chat(A), names=["content-hash"])
        assert engine.bindings.bound == 0

    def test_an_event_read_late_may_be_of_what_is_forgotten(self, engine: Engine) -> None:
        settled(engine, "tokens")
        engine.announce(chat(C))  # read at once: this is how the clocks stand
        sent(engine, chat(A))
        engine.announce(chat(A), late=KEEP_SECONDS)
        assert engine.bindings.bound == 0

    def test_nothing_is_concluded_while_prompts_had_to_be_forgotten_early(self, engine: Engine) -> None:
        settled(engine, "tokens")
        for _ in range(KEPT_PROMPTS + 1):
            engine.bindings.end(sent(engine, chat(B)))
        engine.time.now += KEEP_SECONDS - 1
        sent(engine, chat(A))
        engine.announce(chat(A))
        assert engine.bindings.bound == 0
        engine.time.now += 2
        engine.announce(chat(A))
        assert engine.holds(chat(A))

    def test_a_second_name_of_one_medium_ends_all_trust_in_tokens_and_what_was_built_on_it(
        self, engine: Engine
    ) -> None:
        settled(engine, "tokens")
        sent(engine, chat(A))
        engine.announce(chat(A))
        sent(engine, chat(A, text=2))
        engine.announce(chat(A, text=2), names=["theirs"])
        sent(engine, chat(B, text=3))
        engine.announce(chat(B, text=3))
        assert (engine.held, engine.bindings.bound, engine.bindings.doubts) == (set(), 0, 1)


def test_names_as_they_were_told_need_no_binding_and_others_stay_foreign_without(engine: Engine) -> None:
    engine.bindings.settle([])
    engine.announce(chat(A), names=[engine_uuid(A)])
    assert engine.holds(chat(A))
    engine.announce(chat(B), names=["content-hash"])
    assert engine.translator.unknown == 0
    assert not engine.holds(chat(B))


def test_another_process_of_the_engine_is_known_from_nothing(engine: Engine) -> None:
    settled(engine, "session")
    _, session = sent_alone(engine, chat(A))
    engine.announce(chat(A), session)
    engine.bindings.renew()
    assert (engine.bindings.bound, engine.bindings.active, engine.bindings.how(A)) == (0, True, Binding.NONE)


@pytest.mark.parametrize(("ways", "mode"), [
    ([], Binding.NONE), (["", ""], Binding.NONE), (["session", ""], Binding.SESSION),
    (["session", "tokens"], Binding.TOKENS),
])  # fmt: skip
def test_the_kinds_of_media_say_how_names_are_bound(engine: Engine, ways: list[str], mode: Binding) -> None:
    engine.bindings.settle(ways)
    assert (engine.bindings.mode, engine.bindings.active) == (mode, mode is not Binding.NONE)


media = st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=3)
prompts = st.builds(
    lambda media, text, before, length: chat(*media, text=text, before=before, length=length),
    media, st.integers(1, 2), st.integers(0, 5), st.integers(1, 9),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    asked=st.lists(st.tuples(prompts, st.sampled_from(["own", "client", "none", "foreign", "blind"])), max_size=8),
    way=st.sampled_from(["session", "tokens"]), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_whatever_runs_at_once_no_block_is_published_for_a_medium_it_does_not_hold(
    asked: list[tuple[Chat, str]], way: str, seed: int
) -> None:
    """``foreign``: not sent by us, under names of its own. ``blind``: ours, without identities.

    By tokens alone a stranger's request that equals one of ours can't be told from it: there are no strangers then.
    """
    order = random.Random(seed)
    time = Time()
    bindings = Bindings(time)
    bindings.renew()
    bindings.settle([way])
    engine = Engine(bindings, Translator(SIZE, media=bindings), time)
    running: list[tuple[Chat, str | None, SentPrompt | None, list[str]]] = []
    for number, (prompt, kind) in enumerate(asked):
        names = [changed(span.identity) for span in prompt.spans]
        if kind == "foreign":
            if way == "session":
                running.append((prompt, None, None, [f"theirs-{number}-{span.identity}" for span in prompt.spans]))
            continue
        session = bindings.own_session() if kind == "own" else "client" if kind == "client" else None
        if kind == "blind":
            names = [f"content-{number}-{span.identity}" for span in prompt.spans]
            running.append((prompt, session, sent(engine, Chat((), ()), session, whole=False), names))
        else:
            said = session if way == "session" else None
            running.append((prompt, said, sent(engine, prompt, session, own=kind == "own"), names))
    order.shuffle(running)
    true: set[int] = set()
    for prompt, session, kept, names in running:
        if kept is not None and order.random() < 0.3:
            bindings.end(kept)
        steps = sorted(order.sample(range(1, len(prompt.tokens) // SIZE), k=order.randint(0, 1)))
        ours = names == [changed(span.identity) for span in prompt.spans]
        true.update(prompt.addresses[: None if ours else prompt.spans[0].offset // SIZE])
        engine.announce(prompt, session, steps=steps, names=names)
        assert engine.held <= true
        assert all(name == changed(identity) for name, identity in bindings._known.items())
        time.now += order.random() * 3
