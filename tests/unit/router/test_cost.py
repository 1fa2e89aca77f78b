"""The cost of sending a prompt to a slot: the two checks of the design, and each term by itself."""

from __future__ import annotations

import pytest

from services.router.cost import cost_terms
from services.router.deciding import prompt_of
from services.router.situation import Parameters
from tests.unit.router.build import expanded, image, slot


def terms(request, view, **parameters):
    return cost_terms(prompt_of(request), [view], Parameters(**parameters))[0]


def reuse(request, view, **parameters):
    return terms(request, view, **parameters).reuse


def test_check_of_the_design_prompt_128_overlap_4() -> None:
    assert terms(expanded(tokens=128), slot(device=4)).cost == 12.0


def test_check_of_the_design_prompt_64_cold() -> None:
    assert terms(expanded(tokens=64), slot()).cost == 8.0


@pytest.mark.parametrize(
    ("tiers", "prefill"),
    [({"device": 4}, 4.0), ({"host": 4}, 5.0), ({"disk": 4}, 7.0), ({"device": 2, "host": 1, "disk": 1}, 5.0)],
)
def test_a_block_is_credited_by_its_tier(tiers: dict[str, int], prefill: float) -> None:
    assert terms(expanded(tokens=128), slot(**tiers)).prefill_cost == prefill


def test_the_last_token_is_always_computed_so_a_whole_overlap_is_not_all_usable() -> None:
    whole = reuse(expanded(tokens=128), slot(device=8))
    assert (whole.confirmed.blocks, whole.usable, whole.counted.blocks) == (8, 7, 7)
    assert reuse(expanded(tokens=129), slot(device=8)).usable == 8


def test_what_is_cut_off_the_usable_overlap_is_its_end() -> None:
    assert reuse(expanded(tokens=128), slot(device=6, disk=2)).counted == (6, 0, 1)


def test_active_prefill_delays_the_new_prompt() -> None:
    assert terms(expanded(tokens=64), slot(active_prefill_tokens=160)).prefill_cost == 14.0


def test_blocks_active_on_the_slot_already_are_not_counted_twice() -> None:
    found = terms(expanded(tokens=128), slot(active_decode_blocks=20, active_prefix_blocks=5))
    assert (found.new_decode_blocks, found.decode_cost) == (3, 23.0)


def test_requests_weigh_if_asked_to() -> None:
    assert terms(expanded(tokens=64), slot(active_requests=3), request_weight=2.0).cost == 14.0


def test_predicted_blocks_count_like_the_devices() -> None:
    found = reuse(expanded(tokens=128), slot(device=1, host=1, overlap_predicted=4))
    assert found.counted == (3, 1, 0)
    assert (found.usable, found.predicted) == (2, 4)


def test_scale_and_credits_do_what_they_say() -> None:
    assert terms(expanded(tokens=128), slot(device=4), prefill_scale=2.0).prefill_cost == 8.0
    assert terms(expanded(tokens=128), slot(device=4), overlap_credit=0.0).prefill_cost == 8.0
    assert terms(expanded(tokens=128), slot(device=4), overlap_credit=9.0).prefill_cost == 0.0


def test_an_image_that_is_not_resident_as_a_whole_is_encoded_again() -> None:
    medium, span = image(offset=20, length=40)
    request = expanded(tokens=128, media=[medium], spans=[span], vision_tokens=40)
    assert reuse(request, slot(device=3)).vision_tokens == 40
    assert reuse(request, slot(device=4)).vision_tokens == 0
    assert terms(request, slot(device=3)).prefill_cost == 8 + 40 / 16 - 3
    assert terms(request, slot(device=3), vision_weight=0.0).prefill_cost == 5.0


def test_media_without_a_place_in_the_prompt_are_encoded_anywhere() -> None:
    request = expanded(tokens=128, vision_tokens=100)
    assert reuse(request, slot(device=7)).vision_tokens == 100


def test_what_a_booking_adds_is_what_the_overlap_leaves() -> None:
    medium, span = image(offset=100, length=20)
    request = expanded(tokens=128, media=[medium], spans=[span], vision_tokens=20)
    assert reuse(request, slot(device=4)).new_prefill_tokens == 128 - 64 + 20


def test_many_slots_at_once_cost_what_each_costs_alone() -> None:
    request = expanded(tokens=128)
    views = [
        slot(f"w{n}", device=n % 3, overlap_predicted=n % 5, active_prefill_tokens=n, block_size=16 * (1 + n % 2))
        for n in range(60)
    ]
    together = cost_terms(prompt_of(request), views, Parameters())
    assert together == [terms(request, view) for view in views]
    assert len({id(one.reuse) for one in together}) < len(views)


class TestEncoderCredit:
    """A medium whose KV is gone, but whose encoder output is held, costs its prefill and no vision work."""

    medium, span = image(offset=20, length=40, identity=7)
    request = expanded(tokens=128, media=[medium], spans=[span], vision_tokens=40)
    held = frozenset({7})

    def test_it_is_taken_off_the_vision_work_alone(self) -> None:
        found = terms(self.request, slot(device=1, encoder=self.held))
        assert (found.reuse.vision_tokens, found.reuse.encoder_tokens) == (40, 40)
        assert (found.reuse.confirmed.blocks, found.reuse.credit) == (1, 1.0), "no KV is there for it"
        assert found.prefill_cost == terms(expanded(tokens=128), slot(device=1)).prefill_cost

    def test_it_is_nothing_where_the_kv_is_resident(self) -> None:
        assert reuse(self.request, slot(device=4, encoder=self.held)).encoder_tokens == 0

    def test_other_media_of_the_slot_and_unplaced_ones_of_the_prompt_are_not_credited(self) -> None:
        assert reuse(self.request, slot(encoder=frozenset({8}))).encoder_tokens == 0
        unplaced = expanded(tokens=128, media=[self.medium], spans=[self.span], vision_tokens=100)
        found = reuse(unplaced, slot(encoder=self.held))
        assert (found.vision_tokens, found.encoder_tokens) == (100, 40)

    def test_a_part_of_it_can_be_credited(self) -> None:
        found = terms(self.request, slot(encoder=self.held), encoder_credit=0.25, vision_weight=2.0)
        assert found.prefill_cost == (128 + 2.0 * 30) / 16
        assert found.reuse.new_prefill_tokens == 128 + 60

    def test_only_a_medium_the_engine_knows_by_name_can_be_found(self) -> None:
        hidden = self.medium.model_copy(update={"forward": False})
        for request in (
            expanded(tokens=128, media=[hidden], spans=[self.span], vision_tokens=40),
            expanded(tokens=128, media=[self.medium], spans=[self.span], vision_tokens=40, exact_tokens=59),
        ):
            assert prompt_of(request).identities == frozenset()
            assert reuse(request, slot(encoder=self.held)).encoder_tokens == 0

    def test_an_adapter_may_have_outputs_of_its_own(self) -> None:
        lora = self.request.model_copy(update={"lora": "a"})
        assert prompt_of(self.request).identities == self.held
        assert prompt_of(lora).identities == frozenset()

    def test_slots_that_differ_in_it_are_reckoned_apart(self) -> None:
        slots = [slot("w1"), slot("w2", encoder=self.held), slot("w3")]
        costs = [term.cost for term in cost_terms(prompt_of(self.request), slots, Parameters())]
        assert costs[0] == costs[2] == costs[1] + 40 / 16
