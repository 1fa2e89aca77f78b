"""The decision record: who may be chosen, what it is called when nobody may, and every number that was used."""

from __future__ import annotations

import pytest

from schemas.decision import Decision, Mode, Outcome
from schemas.media import MediaKind
from schemas.request import Claim
from schemas.work import SampledFrames
from schemas.worker import Contract, ModalityContract
from services.kv.reason import Reason
from services.router.booking import booking_of
from services.router.deciding import forwarded_identity
from services.router.dispatch import route_of, work_of
from services.router.situation import Parameters
from services.router.slots import Slot, SlotEpoch
from tests.unit.router.build import AT, NOW_MS, chain, decision, expanded, image, slot


def test_a_decision_names_slot_epoch_and_overlap() -> None:
    found = decision(expanded(tokens=128), slot("w1"), slot("w2", device=5, epoch=9))
    assert (found.outcome, found.worker_id, found.epoch) == (Outcome.ROUTED, "w2", 9)
    assert (found.overlap_confirmed, found.total_blocks, found.usable_blocks, found.predicted_tokens) == (5, 8, 5, 80)
    assert (found.mode, found.reason, found.block_size) == (Mode.EXACT, None, 16)
    assert found.addresses == chain(8)
    assert found.expanded == AT


def test_predicted_tokens_are_those_of_the_usable_confirmed_overlap() -> None:
    found = decision(expanded(tokens=128), slot("w1", device=8, overlap_predicted=8))
    assert (found.overlap_confirmed, found.usable_blocks, found.predicted_tokens) == (8, 7, 112)
    found = decision(expanded(tokens=128), slot("w1", device=2, overlap_predicted=8))
    assert (found.overlap_confirmed, found.overlap_predicted, found.predicted_tokens) == (2, 8, 32)


def test_an_overlap_that_is_an_upper_bound_is_marked() -> None:
    found = decision(expanded(tokens=128), slot("w1", device=5, upper_bound=True))
    assert (found.mode, found.reason) == (Mode.EXACT, Reason.HYBRID_CACHE)
    assert "w1 keeps several cache groups" in found.detail
    assert decision(expanded(tokens=128), slot("w1", upper_bound=True)).reason is None
    cut = expanded(tokens=128, exact_tokens=32, reason=Reason.AUDIO, detail="audio")
    found = decision(cut, slot("w1", device=2, upper_bound=True))
    assert (found.reason, found.detail) == (Reason.AUDIO, "audio")


def test_the_same_inputs_give_the_same_bytes() -> None:
    slots = [slot(f"w{number}") for number in range(6)]
    assert decision(expanded(), *slots).to_bytes() == decision(expanded(), *reversed(slots)).to_bytes()


def test_a_decision_survives_its_record() -> None:
    found = decision(expanded(), *(slot(f"w{n}", device=n % 3, reported={"waiting": 1.0}) for n in range(40)))
    assert Decision.from_bytes(found.to_bytes()) == found


def test_the_chosen_and_the_best_31_others_are_listed_and_the_rest_summed_up() -> None:
    slots = [slot(f"w{n:02}", active_decode_blocks=n) for n in range(40)]
    found = decision(expanded(tokens=64), *slots)
    assert [one.worker_id for one in found.candidates] == [f"w{n:02}" for n in range(32)]
    assert (found.rest.count, found.rest.min_cost, found.rest.max_cost) == (8, 40.0, 47.0)
    assert found.margin == 1.0


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"leased": False},
        {"live": False},
        {"healthy": False},
    ],
)
def test_slots_that_cannot_take_it_are_no_workers(change: dict[str, object]) -> None:
    found = decision(expanded(), slot(**change))
    assert (found.outcome, found.worker_id, found.candidates) == (Outcome.NO_WORKER, None, [])


def test_a_lora_needs_a_worker_that_has_it() -> None:
    assert decision(expanded(lora="a"), slot()).outcome is Outcome.NO_WORKER
    assert decision(expanded(lora="a"), slot(loras=frozenset({"a", "b"}))).outcome is Outcome.ROUTED


@pytest.mark.parametrize(
    ("view", "parameters"),
    [
        ({"reported": {"kv_usage": 0.96}}, {"busy_kv_usage": 0.95}),
        ({"reported": {"waiting": 11.0}}, {"busy_waiting": 10.0}),
        ({"capacity": 4, "worker_requests": 4}, {}),
    ],
)
def test_busy_is_another_outcome_than_nobody(view: dict[str, object], parameters: dict[str, float]) -> None:
    busy, free = slot("busy", **view), slot("free", active_decode_blocks=500)
    assert decision(expanded(), busy, parameters=Parameters(**parameters)).outcome is Outcome.ALL_BUSY
    assert decision(expanded(), busy, free, parameters=Parameters(**parameters)).worker_id == "free"


def test_excluded_slots_are_left_out_and_named() -> None:
    found = decision(expanded(), slot("w1", device=8), slot("w2"), attempt=2, excluded=frozenset({Slot("w1", 0)}))
    assert (found.worker_id, found.attempt, found.excluded) == ("w2", 2, ["w1/0"])


def test_another_block_size_is_chosen_only_when_there_is_no_other() -> None:
    odd = slot("odd", block_size=32)
    assert decision(expanded(), odd, slot("even", active_decode_blocks=500)).worker_id == "even"
    alone = decision(expanded(), odd)
    assert (alone.worker_id, alone.mode, alone.reason) == ("odd", Mode.LOAD_ONLY, Reason.BLOCK_SIZE_UNSEEN)
    assert alone.addresses == []


def test_a_view_that_is_cut_is_text_prefix_and_says_why() -> None:
    request = expanded(tokens=128, exact_tokens=40, reason=Reason.FETCH_FAILED, addresses={16: chain(2)})
    found = decision(request, slot(device=2))
    assert (found.mode, found.reason, found.total_blocks, found.overlap_confirmed) == (
        Mode.TEXT_PREFIX, Reason.FETCH_FAILED, 8, 2,
    )  # fmt: skip


def test_nothing_to_match_is_load_only() -> None:
    request = expanded(tokens=128, exact_tokens=0, reason=Reason.UNSUPPORTED_MODEL, addresses={})
    assert decision(request, slot()).mode is Mode.LOAD_ONLY
    cut_early = expanded(tokens=128, exact_tokens=9, reason=Reason.AUDIO, addresses={16: []})
    assert decision(cut_early, slot()).mode is Mode.LOAD_ONLY


def test_an_identity_is_forwarded_only_from_the_exact_prefix() -> None:
    (first, span), (second, late) = image(10, 20, 0xA, item=0), image(50, 30, 0xB, item=1)
    request = expanded(tokens=128, exact_tokens=64, media=[first, second], spans=[span, late], addresses={16: chain(4)})
    assert [forwarded_identity(request, item) for item in (0, 1)] == [0xA, None]
    found = decision(request, slot())
    assert [medium.forwarded for medium in found.media] == [True, False]
    assert [medium.identity for medium in work_of(request, found).media] == [0xA, None]


def test_an_identity_that_may_not_travel_stays() -> None:
    medium, span = image(10, 20)
    request = expanded(media=[medium.model_copy(update={"forward": False})], spans=[span])
    assert forwarded_identity(request, 0) is None


def test_work_carries_the_body_and_the_epoch_it_was_decided_for() -> None:
    request = expanded(stream=True, reply_to="kvroute.responses.me", cache_salt="s", priority=3)
    work = work_of(request, decision(request, slot("w2", epoch=4)))
    assert (work.worker_id, work.epoch, work.attempt, work.body) == ("w2", 4, 1, "{}")
    assert (work.stream, work.reply_to, work.cache_salt, work.priority) == (True, "kvroute.responses.me", "s", 3)
    assert (work.deadline_ms, work.decided_at_ms) == (request.deadline_ms, NOW_MS)


def test_there_is_no_work_without_a_worker() -> None:
    with pytest.raises(ValueError, match="there is no work"):
        work_of(expanded(), decision(expanded()))


@pytest.mark.parametrize(("way", "known"), [("", 0), ("session", 3), ("tokens", 8)])
def test_work_says_the_blocks_where_the_agent_knows_media_by_them(way: str, known: int) -> None:
    medium, span = image(16, 40 - 16)
    request = expanded(tokens=128, media=[medium], spans=[span], vision_tokens=24)
    contract = Contract(model="m", video=ModalityContract(binding=way))
    work = work_of(request, decision(request, slot()), contract)
    assert work.addresses == request.addresses[16][:known]


def test_work_has_frames_only_of_a_video_whose_identity_travels() -> None:
    medium, span = image(16, 20)
    claim = Claim(uri="blob:" + "0" * 32, size=1)
    video = medium.model_copy(
        update={"kind": MediaKind.VIDEO, "frames_claim": claim, "fps": 4.0, "total_frames": 8, "duration": 2.0,
                "frame_indices": [0, 7]}
    )  # fmt: skip
    request = expanded(media=[video], spans=[span])
    (found,) = work_of(request, decision(request, slot())).media
    assert found.frames == SampledFrames(claim=claim, indices=[0, 7], fps=4.0, total_frames=8, duration=2.0)
    untold = expanded(media=[video.model_copy(update={"forward": False})], spans=[span])
    assert work_of(untold, decision(untold, slot())).media[0].frames is None


def test_a_route_says_where_and_how_sure() -> None:
    route = route_of(decision(expanded(route_only=True), slot("w1", device=3), slot("w2")))
    assert (route["worker_id"], route["overlap_blocks"], route["total_blocks"], route["exact"]) == ("w1", 3, 8, True)
    assert [one["worker_id"] for one in route["candidates"]] == ["w1", "w2"]


def test_a_booking_is_read_from_the_record_alone() -> None:
    medium, span = image(100, 20)
    request = expanded(tokens=135, media=[medium], spans=[span], vision_tokens=20, exact_tokens=135)
    found = Decision.from_bytes(decision(request, slot("w1", device=2, overlap_predicted=4)).to_bytes())
    booking = booking_of(found)
    assert booking is not None
    assert booking.life == SlotEpoch("w1", 0, 1)
    assert booking.prefill_tokens == 135 - 64 + 20
    assert (list(booking.addresses), booking.unaddressed_blocks) == (chain(8), 0)


def test_a_held_encoder_output_decides_among_equals_and_is_told_apart() -> None:
    medium, span = image(16, 40, identity=7)
    request = expanded(tokens=135, media=[medium], spans=[span], vision_tokens=40, exact_tokens=135)
    slots = [slot("w1"), slot("w2", encoder=frozenset({7})), slot("w3")]
    found = Decision.from_bytes(decision(request, *slots).to_bytes())
    assert (found.worker_id, found.ties, found.margin) == ("w2", 1, 40 / 16)
    assert (found.overlap_confirmed, found.predicted_tokens) == (0, 0), "it is no KV overlap"
    assert [(one.vision_tokens, one.encoder_tokens) for one in found.candidates] == [(40, 40), (40, 0), (40, 0)]
    assert found.parameters["encoder_credit"] == 1.0
    booking = booking_of(found)
    assert booking is not None
    assert booking.prefill_tokens == 135
    assert route_of(found)["candidates"][0]["encoder_tokens"] == 40


def test_work_says_where_its_media_stand_if_the_engine_knows_them() -> None:
    medium, span = image(16, 40, identity=7)
    request = expanded(tokens=135, media=[medium], spans=[span], vision_tokens=40)
    (sent,) = work_of(request, decision(request, slot())).media
    assert (sent.identity, sent.tokens, sent.end) == (7, 40, 56)
    cut = request.model_copy(update={"exact_tokens": 40})
    (sent,) = work_of(cut, decision(cut, slot())).media
    assert (sent.identity, sent.tokens, sent.end) == (None, None, None)


def test_a_question_for_the_route_books_only_if_it_says_so() -> None:
    assert booking_of(decision(expanded(route_only=True), slot())) is None
    assert booking_of(decision(expanded(route_only=True, book=True), slot())) is not None
    assert booking_of(decision(expanded())) is None
