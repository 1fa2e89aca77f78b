"""What a decision cost can be worked out again from its record alone, term by term."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.decision import Candidate, Decision
from services.router.situation import Parameters
from services.router.slots import Overlap
from tests.unit.router.build import decision, expanded, image, slot

SIZE = 16


def rederived(record: Decision, candidate: Candidate) -> dict[str, float]:
    """The costs of one candidate by the formula of docs/design.md, section 9."""
    with_ = record.parameters
    predicted = max(candidate.overlap_predicted, 0)
    host, disk = candidate.overlap_host, candidate.overlap_disk
    usable = min(predicted, max(0, record.prompt_tokens - 1) // record.block_size)
    device, host, disk = Overlap(predicted - host - disk, host, disk).limited(usable)
    cached = (device + 0.75 * host + 0.25 * disk) * record.block_size
    credit = with_["overlap_credit"] * device + with_["host_credit"] * host + with_["disk_credit"] * disk
    seen = max(0.0, candidate.vision_tokens - with_["encoder_credit"] * candidate.encoder_tokens)
    tokens = max(0.0, record.prompt_tokens - cached) + cached + with_["vision_weight"] * seen
    prefill = with_["prefill_scale"] * max(0.0, (candidate.active_prefill_tokens + tokens) / record.block_size - credit)
    decode = float(candidate.active_decode_blocks + candidate.new_decode_blocks)
    requests = with_["request_weight"] * candidate.active_requests
    whole = prefill + decode + requests
    return {"prefill_cost": prefill, "decode_cost": decode, "request_cost": requests, "cost": whole}


blocks = st.integers(0, 5)
slots = st.builds(
    lambda name, device, host, disk, recent, load, encoder: slot(
        name, device=device, host=host, disk=disk, overlap_predicted=recent, active_prefill_tokens=37 * load,
        active_decode_blocks=3 * load, active_requests=load, encoder=encoder,
    ),
    st.sampled_from(["w1", "w2", "w3"]), blocks, blocks, blocks, st.integers(0, 12), st.integers(0, 4),
    st.frozensets(st.sampled_from([7, 8, 9])),
)  # fmt: skip


@given(
    st.lists(slots, min_size=1, max_size=3, unique_by=lambda one: one.life),
    st.integers(90, 300),
    st.floats(0, 1),
    st.floats(0, 4),
    st.floats(0, 2),
)
def test_every_term_follows_from_the_record(
    views: list, tokens: int, encoder_credit: float, vision_weight: float, request_weight: float
) -> None:
    media, spans = zip(image(5, 20, identity=7, item=0), image(50, 33, identity=8, item=1), strict=True)
    request = expanded(tokens=tokens, media=list(media), spans=list(spans), vision_tokens=53 + tokens % 3)
    parameters = Parameters(
        encoder_credit=encoder_credit, vision_weight=vision_weight, request_weight=request_weight, overlap_credit=0.9
    )  # fmt: skip
    record = Decision.from_bytes(decision(request, *views, parameters=parameters).to_bytes())
    assert len(record.candidates) == len(views)
    for candidate in record.candidates:
        assert candidate.encoder_tokens <= candidate.vision_tokens
        assert rederived(record, candidate) == {
            name: getattr(candidate, name) for name in ("prefill_cost", "decode_cost", "request_cost", "cost")
        }
