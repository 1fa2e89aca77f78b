"""Exact only where every live worker has proven the layout."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.media import MediaKind
from schemas.worker import ModalityContract, Worker
from services.kv.reason import Reason
from services.layout.contract import NO_VIDEO, Proof, proof_of
from services.layout.families.variants import named, place_part
from tests.unit.layout.workers import contract, proven, worker

FAILED = ModalityContract(proven=False, variant="", detail="no variant matched")


def reasons(*live: Worker, variant: str = "qwen2_5_vl", required: bool = True) -> tuple[Reason | None, Reason | None]:
    proof = proof_of(live, variant, required=required)
    return (proof.text and proof.text[0], proof.image and proof.image[0])


def test_all_proved_the_same() -> None:
    assert reasons(worker("w1"), worker("w2")) == (None, None)


def test_nobody_is_there_to_prove_anything() -> None:
    assert reasons() == (Reason.CONTRACT_MISSING, Reason.CONTRACT_MISSING)


def test_one_worker_without_a_contract_is_enough_to_doubt() -> None:
    assert reasons(worker("w1"), worker("w2", contract=None)) == (Reason.CONTRACT_MISSING, Reason.CONTRACT_MISSING)


def test_text_that_was_not_proven() -> None:
    text, image = proof_of([worker(contract=contract(text=FAILED))], "qwen2_5_vl").text, None
    assert text == (Reason.TEMPLATE_MISMATCH, "worker w1 did not prove the text layout: no variant matched")
    assert image is None


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (ModalityContract(), Reason.CONTRACT_MISSING),
        (FAILED, Reason.CONTRACT_MISMATCH),
        (proven("qwen3_vl"), Reason.CONTRACT_MISMATCH),
        (proven(verbatim_identity=False), Reason.UNSUPPORTED_ENGINE),
        (proven(verbatim_identity=False, binding="session"), None),
        (proven(verbatim_identity=True), None),
    ],
)
def test_images(image: ModalityContract, reason: Reason | None) -> None:
    assert reasons(worker(contract=contract(image=image))) == (None, reason)


def test_workers_that_proved_different_layouts() -> None:
    other = worker("w2", contract=contract(image=proven("qwen3_vl")))
    assert reasons(worker("w1"), other)[1] is Reason.WORKERS_DISAGREE


def test_workers_that_proved_the_same_familys_layout_for_engines_of_other_lengths() -> None:
    live = [worker(contract=contract(image=proven(f"nemotron_nano_omni/len-{length}"))) for length in (4096, 8192)]
    assert reasons(live[0], variant="nemotron_nano_omni/len-262144") == (None, None)
    assert proof_of(live[:1], "nemotron_nano_omni/len-262144").image_variant == "nemotron_nano_omni/len-4096"
    assert reasons(*live, variant="nemotron_nano_omni/len-262144")[1] is Reason.WORKERS_DISAGREE
    assert proof_of(live, "nemotron_nano_omni/len-262144").image_variant is None


@pytest.mark.parametrize(
    ("engine", "version", "variant", "reason"),
    [
        ("sglang", "0.5.13", "qwen2_5_vl", None),
        ("sglang", "0.5.12", "qwen2_5_vl", Reason.UNSUPPORTED_ENGINE),
        ("sglang", "0.6.0", "nemotron_nano_omni/len-4096", Reason.UNSUPPORTED_ENGINE),
        ("trtllm", "1.2.0", "qwen3_vl", Reason.UNSUPPORTED_ENGINE),
        ("trtllm", "1.2.0", "kimi_k25", None),
        ("another", "", "qwen2_5_vl", Reason.UNSUPPORTED_ENGINE),
        ("another", "", "text", Reason.UNSUPPORTED_ENGINE),
    ],
)
def test_a_family_on_an_engine_that_cannot_say_its_images(
    engine: str, version: str, variant: str, reason: Reason | None
) -> None:
    there = worker(engine=engine, engine_version=version, contract=contract(image=proven(variant)))
    assert reasons(there, variant=variant) == (None, reason)


def test_images_larger_than_what_the_probes_covered() -> None:
    small = worker("w2", contract=contract(image=proven(max_pixels=1000)))
    proof = proof_of([worker("w1"), small], "qwen2_5_vl")
    assert proof.of(MediaKind.IMAGE, 1000) is None
    why = proof.of(MediaKind.IMAGE, 1001)
    assert why is not None
    assert why == (Reason.CONTRACT_MISSING, "the image has 1001 pixels, layouts are proven up to 1000")


def test_belief_can_be_asked_for() -> None:
    assert reasons(required=False) == reasons(worker(contract=None), required=False) == (None, None)


class TestVideos:
    """Exact where all workers proved one layout and take the frames that we take."""

    RULE = "qwen2_vl/fps=2"

    def why(self, *live: Worker, sampling: str | None = RULE) -> Reason | None:
        found = proof_of(live, "qwen2_5_vl", sampling=sampling).video
        return found and found[0]

    def videos(self, **fields: Any) -> ModalityContract:
        return proven(**({"sampling": self.RULE} | fields))

    def test_all_proved_the_same(self) -> None:
        live = [worker(name, contract=contract(video=self.videos())) for name in ("w1", "w2")]
        proof = proof_of(live, "qwen2_5_vl", sampling=self.RULE)
        assert (proof.video, proof.video_variant) == (None, "qwen2_5_vl")

    @pytest.mark.parametrize(
        ("video", "reason"),
        [
            (ModalityContract(), Reason.CONTRACT_MISSING),
            (FAILED, Reason.CONTRACT_MISMATCH),
            (proven("qwen3_vl", sampling=RULE), Reason.CONTRACT_MISMATCH),
            (proven(sampling="qwen2_vl/fps=4"), Reason.CONTRACT_MISMATCH),
            (proven(), Reason.CONTRACT_MISMATCH),
            (proven(sampling=RULE, verbatim_identity=False), Reason.UNSUPPORTED_ENGINE),
        ],
    )
    def test_one_that_did_not(self, video: ModalityContract, reason: Reason) -> None:
        assert self.why(worker(contract=contract(video=video))) is reason

    def test_workers_that_disagree(self) -> None:
        one = worker("w1", contract=contract(video=self.videos()))
        pruned = worker("w2", contract=contract(video=self.videos(variant="qwen2_5_vl/evs-0.5")))
        denser = worker("w2", contract=contract(video=self.videos(sampling="qwen2_vl/fps=4")))
        assert self.why(one, pruned) is self.why(one, denser) is Reason.WORKERS_DISAGREE
        assert self.why(one, worker("w2", contract=None)) is Reason.CONTRACT_MISSING

    def test_an_engine_that_cannot_say_videos(self) -> None:
        there = worker(engine="sglang", engine_version="0.6.0", contract=contract(video=self.videos()))
        assert self.why(there) is Reason.UNSUPPORTED_ENGINE

    def test_a_family_without(self) -> None:
        for live in ([], [worker(contract=contract(video=self.videos()))]):
            for required in (True, False):
                assert proof_of(live, "qwen2_5_vl", required=required).video == NO_VIDEO

    def test_beyond_what_the_probes_covered(self) -> None:
        live = [worker(contract=contract(video=self.videos(max_pixels=1000, max_items=1)))]
        proof = proof_of(live, "qwen2_5_vl", sampling=self.RULE)
        assert proof.of(MediaKind.VIDEO, 1000) is None
        assert proof.of(MediaKind.VIDEO, 1001) == (
            Reason.CONTRACT_MISSING, "the video has 1001 pixels, layouts are proven up to 1000",
        )  # fmt: skip
        second = proof.of(MediaKind.VIDEO, 10, 2)
        assert second is not None
        assert second[0] is Reason.CONTRACT_MISSING

    def test_belief_can_be_asked_for(self) -> None:
        assert proof_of([], "qwen2_5_vl", sampling=self.RULE, required=False).video is None

    def test_audio_has_its_reason_elsewhere(self) -> None:
        assert Proof().of(MediaKind.AUDIO) is None


class TestRendered:
    """An engine's rendering and the folder's template are proven each by itself."""

    OWN, SERVER = "render/vllm-0.32.0/00ff", f"render/vllm-0.32.0/00ff/{place_part('http://r')}"

    def worker(self, variant: str, image: str | None = None, name: str = "w1") -> Worker:
        return worker(name, contract=contract(text=proven(variant), image=proven(image or variant)))

    def test_what_workers_render_themselves(self) -> None:
        assert reasons(self.worker(self.OWN), variant="render") == (None, None)

    def test_a_template_says_nothing_of_renderings_nor_they_of_it(self) -> None:
        mismatch = (Reason.CONTRACT_MISMATCH, Reason.CONTRACT_MISMATCH)
        assert reasons(worker(), variant="render") == mismatch
        assert reasons(self.worker(self.OWN)) == mismatch
        assert reasons(self.worker(self.OWN), variant="processor/transformers-5.24.0/P-1") == mismatch

    def test_only_the_server_that_was_proven_is_believed(self) -> None:
        here = named("render", place_part("http://r/"))
        assert reasons(self.worker(self.SERVER), variant=here) == (None, None)
        for proved, asked in ((self.OWN, here), (self.SERVER, "render"), (self.SERVER, "render/at-1")):
            assert reasons(self.worker(proved), variant=asked) == (
                Reason.CONTRACT_MISMATCH, Reason.CONTRACT_MISMATCH,
            )  # fmt: skip

    def test_workers_that_render_alike_have_one_name(self) -> None:
        other = self.worker(self.OWN + "0", self.OWN, "w2")
        assert reasons(self.worker(self.OWN), other, variant="render") == (Reason.WORKERS_DISAGREE, None)
