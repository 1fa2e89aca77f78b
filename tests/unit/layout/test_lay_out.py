"""Resolved media and a body become an expanded record."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.expanded import Expanded
from schemas.media import IdentitySource, MediaItem, MediaKind, MediaResolved
from services.kv.address import Span, addresses
from services.kv.reason import Reason
from services.layout import lay_out as module
from services.layout.contract import Bounds, Proof
from services.layout.lay_out import lay_out
from tests.unit.layout.golden import layouter

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
TEXT = "Tell me about this picture in as many words as it takes to fill a few blocks of sixteen tokens, please."


def item(identity: int | None = 7, **fields: Any) -> MediaItem:
    given = {"height": 168, "width": 224, "source": IdentitySource.URL, "forward": True, **fields}
    return MediaItem(kind=MediaKind.IMAGE, message=0, part=0, identity=identity, **given)


def resolved(*media: MediaItem, **fields: Any) -> MediaResolved:
    return MediaResolved(
        request_id="r1",
        tenant="t",
        model="qwen",
        deadline_ms=9,
        created_at_ms=1,
        media=list(media),
        body="{}",
        **fields,
    )


def body(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts, TEXT]}]}


def expand(request: MediaResolved, given: dict[str, Any], proof: Proof = Proof(), **fields: Any) -> Expanded:  # noqa: B008
    arguments = {"layouter": layouter("qwen2.5-vl"), "block_sizes": [16, 32], "model": "qwen", "lora": None, **fields}
    return lay_out(request, given, arguments.pop("layouter"), proof, arguments.pop("block_sizes"), **arguments)


def test_addresses_for_every_block_size_with_the_media_in_them() -> None:
    found = expand(resolved(item()), body(IMAGE))
    view = layouter("qwen2.5-vl").view(body(IMAGE), [module.MediaShape.of(item())])
    (span,) = found.spans
    assert (span.identity, span.length, span.vision_tokens) == (7, 48, 48)
    spans = [Span(span.offset, span.length, 7)]
    assert found.addresses == {size: addresses(view.token_ids, size, spans) for size in (16, 32)}
    assert found.exact_tokens == found.prompt_tokens == len(view.token_ids)
    assert (found.reason, found.variant, found.vision_tokens) == (None, "qwen2_5_vl", 48)


def test_the_variant_that_the_workers_proved_is_laid_out() -> None:
    nemotron = layouter("nemotron-3-nano-omni")
    three = resolved(*[item(number, height=1080, width=1920) for number in (1, 2, 3)])
    small = expand(
        three, body(IMAGE, IMAGE, IMAGE), Proof(image_variant="nemotron_nano_omni/len-4096"), layouter=nemotron
    )
    assert (small.reason, small.variant) == (Reason.BUDGET_EXCEEDED, "nemotron_nano_omni/len-4096")
    assert [medium.forward for medium in small.media] == [False] * 3
    large = expand(
        three, body(IMAGE, IMAGE, IMAGE), Proof(image_variant="nemotron_nano_omni/len-65536"), layouter=nemotron
    )
    assert (large.reason, len(large.spans), large.variant) == (None, 3, "nemotron_nano_omni/len-65536")


def test_a_variant_that_the_model_does_not_have() -> None:
    found = expand(resolved(item()), body(IMAGE), Proof(image_variant="qwen2_5_vl/len-4096"))
    assert (found.reason, found.spans) == (Reason.CONTRACT_MISMATCH, [])
    assert "qwen2_5_vl/len-4096" in (found.detail or "")


def test_the_envelope_and_the_body_pass_unchanged() -> None:
    request = resolved(item(), session_id="s", priority=3, cache_salt="salt", timings_ms={"media": 1.5})
    found = expand(request, body(IMAGE))
    kept = {name: getattr(found, name) for name in MediaResolved.model_fields}
    assert kept == {name: getattr(request, name) for name in MediaResolved.model_fields}


def test_adapter_and_salt_change_the_addresses() -> None:
    plain = expand(resolved(), body())
    salted = expand(resolved(cache_salt="salt"), body())
    adapted = expand(resolved(), body(), lora="sql")
    assert len({tuple(found.addresses[16]) for found in (plain, salted, adapted)}) == 3
    assert (adapted.model, adapted.lora) == ("qwen", "sql")


def test_after_the_cut_nothing_is_told_to_the_engine() -> None:
    bad = item(8, reason=Reason.FETCH_FAILED, forward=False)
    found = expand(resolved(item(7), bad, item(9)), body(IMAGE, IMAGE, IMAGE))
    assert [(m.forward, m.reason) for m in found.media] == [
        (True, None), (False, Reason.FETCH_FAILED), (False, Reason.FETCH_FAILED),
    ]  # fmt: skip
    assert [span.item for span in found.spans] == [0]
    assert found.reason is Reason.FETCH_FAILED
    assert len(found.addresses[16]) == found.exact_tokens // 16 > 0


def test_an_image_without_a_contract_leaves_the_text_before_it() -> None:
    found = expand(resolved(item()), body(TEXT, IMAGE), Proof(image=(Reason.CONTRACT_MISSING, "w1")))
    assert (found.reason, found.detail, found.spans) == (Reason.CONTRACT_MISSING, "w1", [])
    assert 16 < found.exact_tokens < found.prompt_tokens
    assert found.media[0].forward is False
    assert found.vision_tokens == 48, "the work is there, wherever it goes"


def test_text_without_a_contract_leaves_nothing() -> None:
    found = expand(resolved(item()), body(IMAGE), Proof(text=(Reason.TEMPLATE_MISMATCH, "w1")))
    assert (found.reason, found.exact_tokens, found.addresses) == (Reason.TEMPLATE_MISMATCH, 0, {16: [], 32: []})
    assert found.prompt_tokens > 48


VIDEO = MediaItem(
    kind=MediaKind.VIDEO, message=0, part=0, identity=1, forward=True, height=64, width=64,
    frame_indices=[0, 1, 2, 3], frames=4, fps=2.0,
)  # fmt: skip


def test_a_video_is_laid_out_as_the_workers_proved() -> None:
    asked = resolved(VIDEO), body({"type": "video_url", "video_url": {"url": "x"}})
    whole = expand(*asked, Proof(video_variant="qwen2_5_vl"))
    pruned = expand(*asked, Proof(video_variant="qwen2_5_vl/evs-0.5"))
    assert [found.reason for found in (whole, pruned)] == [None, None]
    assert pruned.spans[0].length < whole.spans[0].length
    assert whole.exact_tokens == whole.prompt_tokens


def test_a_video_that_is_not_proven_leaves_the_text_before_it() -> None:
    asked = resolved(VIDEO.model_copy(update={"part": 1})), body(TEXT, {"type": "video_url", "video_url": {"url": "x"}})
    for proof, reason in (
        (Proof(video=(Reason.CONTRACT_MISSING, "w1")), Reason.CONTRACT_MISSING),
        (Proof(video_variant="qwen2_5_vl/unheard-of"), Reason.CONTRACT_MISMATCH),
        (Proof(video_bounds=Bounds(pixels=64 * 64 * 4 - 1)), Reason.CONTRACT_MISSING),
        (Proof(video_bounds=Bounds(items=0)), Reason.CONTRACT_MISSING),
    ):
        found = expand(*asked, proof)
        assert (found.reason, found.spans, found.media[0].forward) == (reason, [], False)
        assert found.exact_tokens > 0


def test_without_a_folder_only_the_load_counts() -> None:
    found = expand(resolved(item()), body(IMAGE), layouter=None)
    assert (found.reason, found.exact_tokens, found.variant) == (Reason.TEMPLATE_MISSING, 0, "")
    assert found.prompt_tokens > 1000


def test_without_a_block_size_there_are_no_addresses() -> None:
    found = expand(resolved(), body(), block_sizes=[])
    assert (found.reason, found.addresses) == (Reason.BLOCK_SIZE_UNSEEN, {})
    assert found.exact_tokens == found.prompt_tokens
    missing = expand(resolved(), body(), Proof(text=(Reason.CONTRACT_MISSING, "none")), block_sizes=[])
    assert missing.reason is Reason.CONTRACT_MISSING


def test_a_very_long_prompt_is_addressed_as_far_as_a_record_can_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = expand(resolved(), body(TEXT * 4))
    monkeypatch.setattr(module, "MAX_ADDRESSES", 4)
    found = expand(resolved(), body(TEXT * 4))
    assert found.addresses == {16: whole.addresses[16][:2], 32: whole.addresses[32][:2]}


def test_the_record_survives_the_wire() -> None:
    found = expand(resolved(item()), body(IMAGE))
    assert Expanded.from_bytes(found.to_bytes()) == found
