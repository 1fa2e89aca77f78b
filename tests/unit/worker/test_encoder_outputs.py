"""What an agent may say of an engine's encoder outputs: only what is there under every possible order of events."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine_sim.encoder_cache import EncoderCache
from services.worker.encoder_outputs import PUBLISHED, EncoderOutputs, Sending, SentMedium

A, B, C = 0xA, 0xB, 0xC


def medium(identity: int | None, tokens: int | None = 4, end: int = 10) -> SentMedium:
    return SentMedium(identity, tokens, end)


def run(outputs: EncoderOutputs, *media: SentMedium, cached: int | None = 0, whole: bool = True) -> None:
    """One request from its sending to its answer, nothing beside it."""
    outputs.answered(outputs.sending(media), cached, whole=whole)


def test_what_was_used_and_fits_is_held_the_latest_first() -> None:
    outputs = EncoderOutputs(8)
    run(outputs, medium(A))
    run(outputs, medium(B))
    assert outputs.held == [B, A]
    run(outputs, medium(A))
    assert outputs.held == [A, B]
    run(outputs, medium(C))
    assert outputs.held == [C, A]


def test_without_a_capacity_nothing_is_claimed() -> None:
    outputs = EncoderOutputs(0)
    run(outputs, medium(A))
    assert outputs.held == []


def test_what_was_found_in_the_kv_cache_was_not_encoded() -> None:
    outputs = EncoderOutputs(8)
    run(outputs, medium(A, end=16), cached=16)
    assert outputs.held == []
    run(outputs, medium(A, end=17), cached=16)
    assert outputs.held == [A]


def test_finding_its_kv_does_not_make_an_output_the_latest() -> None:
    outputs = EncoderOutputs(8)
    run(outputs, medium(A))
    run(outputs, medium(B))
    run(outputs, medium(A), cached=10)
    run(outputs, medium(C))
    assert outputs.held == [C], "B may have gone or A: which of them depends on whether A was used again"


def test_a_request_in_flight_may_push_out_already() -> None:
    outputs = EncoderOutputs(8)
    run(outputs, medium(A))
    run(outputs, medium(B))
    sending = outputs.sending([medium(C)])
    assert outputs.held == [B]
    outputs.answered(sending, 0, whole=True)
    assert outputs.held == [C, B]


def test_of_two_at_once_each_may_have_been_first() -> None:
    outputs = EncoderOutputs(8)
    first, second = outputs.sending([medium(A)]), outputs.sending([medium(B)])
    outputs.answered(second, 0, whole=True)
    outputs.answered(first, 0, whole=True)
    run(outputs, medium(C))
    assert outputs.held == [C], "A or B is there, nobody knows which"


def test_what_failed_takes_room_and_is_not_held() -> None:
    outputs = EncoderOutputs(8)
    run(outputs, medium(A))
    run(outputs, medium(B))
    run(outputs, medium(C), whole=False)
    assert outputs.held == [B]


def test_an_answer_without_cached_tokens_means_none_only_from_engines_that_report_them() -> None:
    outputs = EncoderOutputs(8)
    run(outputs, medium(A), cached=None)
    assert outputs.held == []
    run(outputs, medium(B), cached=3)
    run(outputs, medium(A), cached=None)
    assert outputs.held == [A, B]


def test_media_of_unknown_name_or_size_are_reckoned_with() -> None:
    outputs = EncoderOutputs(8)
    run(outputs, medium(A))
    run(outputs, medium(None, 4))
    assert outputs.held == [A]
    run(outputs, medium(None, None))
    assert outputs.held == []
    run(outputs, medium(B))
    assert outputs.held == [B]


def test_a_cleared_cache_holds_nothing_of_before() -> None:
    outputs = EncoderOutputs(8)
    run(outputs, medium(A))
    sending = outputs.sending([medium(B)])
    outputs.clear()
    outputs.answered(sending, 0, whole=True)
    assert outputs.held == [], "B may have been encoded before the cache was dropped"
    run(outputs, medium(B))
    assert outputs.held == [B]


def test_a_medium_twice_in_a_prompt_takes_room_once() -> None:
    outputs = EncoderOutputs(4)
    run(outputs, medium(A, end=5), medium(A, end=9), cached=5)
    assert outputs.held == [A]


def test_no_more_than_a_heartbeat_takes() -> None:
    outputs = EncoderOutputs(1 << 30)
    for identity in range(PUBLISHED + 9):
        run(outputs, medium(identity))
    assert outputs.held == list(range(PUBLISHED + 8, 8, -1))


def test_nothing_piles_up() -> None:
    outputs = EncoderOutputs(100)
    for identity in range(3000):
        run(outputs, medium(identity, 4))
    assert len(outputs._outputs) <= 26


CAPACITY = 12
SIZES = {identity: 1 + identity for identity in range(7)}


class Engine:
    """An engine's own cache, used by the requests in whatever order they are computed."""

    def __init__(self) -> None:
        self.cache = EncoderCache(CAPACITY)
        self.left: dict[Sending, list[int]] = {}

    def compute(self, sending: Sending) -> bool:
        """Encode what is left of a request; whether all of it is done."""
        left = self.left[sending]
        while left:
            name = str(left[0])
            if not self.cache.use(sending, name):
                if not self.cache.make_room(SIZES[left[0]]):
                    return False
                self.cache.take(sending, name, SIZES[left[0]])
            self.cache.release(sending, name)
            del left[0]
        return True


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.lists(st.integers(0, 6), min_size=1, max_size=3)),
            st.tuples(st.sampled_from(["compute", "hold", "answer", "find", "fail"]), st.integers(0, 5)),
        ),
        max_size=60,
    )
)
def test_whatever_the_engine_does_first_what_is_claimed_is_there(steps: Sequence[tuple[str, object]]) -> None:
    """Requests are computed anywhere between sending and answer, are found in the KV cache, or fail."""
    outputs, engine = EncoderOutputs(CAPACITY), Engine()
    flying: list[Sending] = []
    for what, which in steps:
        if what == "send":
            assert isinstance(which, list)
            sending = outputs.sending([medium(identity, SIZES[identity]) for identity in which])
            engine.left[sending] = list(which)
            flying.append(sending)
        elif flying:
            assert isinstance(which, int)
            sending = flying[which % len(flying)]
            if what == "hold" and engine.left[sending]:
                engine.cache.use(sending, str(engine.left[sending][0]))
            elif what == "compute":
                engine.compute(sending)
            elif what != "hold":
                found = what == "find" and len(engine.left[sending]) == len(sending.media)
                whole = found or (what == "answer" and engine.compute(sending))
                outputs.answered(sending, 99 if found else 0, whole=whole)
                for one in sending.media:
                    engine.cache.release(sending, str(one.identity))
                flying.remove(sending)
        assert all(str(identity) in engine.cache for identity in outputs.held)
