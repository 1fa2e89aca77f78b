"""The registry: every reference vector belongs to a family, every family to the engines that can say its media."""

from __future__ import annotations

import pytest

from schemas.media import MediaKind
from services.kv.reason import MEANING, Reason
from services.layout.families.registry import ENTRIES, entry_of
from services.layout.families.support import ENGINES, supports
from tests.unit.layout.families.reading import FOLDERS, family_of
from tests.unit.layout.golden import TESTS

VECTORS = {path.stem for path in (TESTS / "golden" / "layout").glob("*.json")}
EVERYONE = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "llava", "llava_next",
            "llama4", "kimi_k25", "nemotron_nano_omni", "nemotron_nano_vl"]  # fmt: skip


def test_every_vector_is_some_familys_and_every_name_a_vector() -> None:
    named = {name for entry in ENTRIES for coverage in (entry.image, entry.video) for name in coverage.checked_against}
    assert named == VECTORS


def test_what_is_exact_was_checked_and_what_is_not_says_why() -> None:
    for entry in ENTRIES:
        for coverage in (entry.image, entry.video):
            assert bool(coverage.checked_against) is coverage.exact
            assert coverage.exact or coverage.condition
            assert set(coverage.reasons) <= set(MEANING)


def test_a_model_type_is_of_one_family_only() -> None:
    types = [model_type for entry in ENTRIES for model_type in entry.model_types]
    assert len(types) == len(set(types))
    assert entry_of("qwen3_vl_moe") is entry_of("qwen3_vl") is not entry_of("qwen3_5")
    assert entry_of("bert") is entry_of(None) is None


@pytest.mark.parametrize("name", FOLDERS)
def test_a_familys_placeholders_are_as_the_registry_says(name: str) -> None:
    family = family_of(name)
    entry = next(entry for entry in ENTRIES if supports("vllm", family.variant, MediaKind.IMAGE) is None
                 and any(name in one for one in entry.image.checked_against))  # fmt: skip
    assert family.placeholder(MediaKind.IMAGE) is not None
    assert (family.placeholder(MediaKind.VIDEO) is not None) is entry.video.exact
    assert family.placeholder(MediaKind.AUDIO) is None
    assert family.placeholder_text(MediaKind.AUDIO) is None


@pytest.mark.parametrize(
    ("engine", "images", "videos"),
    [
        ("vllm", EVERYONE, [*EVERYONE[:6], "nemotron_nano_omni", "nemotron_nano_vl"]),
        ("sglang", EVERYONE[:10], []),
        ("trtllm", ["qwen2_vl", "qwen2_5_vl", "kimi_k25"], []),
        ("another", [], []),
    ],
)
def test_the_table_of_engines(engine: str, images: list[str], videos: list[str]) -> None:
    for kind, covered in ((MediaKind.IMAGE, images), (MediaKind.VIDEO, videos), (MediaKind.AUDIO, [])):
        for family in EVERYONE:
            expected = None if family in covered else Reason.UNSUPPORTED_ENGINE
            assert supports(engine, family, kind) is expected, (engine, family, kind)


def test_a_layouts_variants_are_supported_like_its_family() -> None:
    assert supports("vllm", "qwen3_vl/transformers-5.15/evs-0.5", MediaKind.VIDEO) is None
    assert supports("sglang", "nemotron_nano_omni/len-4096", MediaKind.IMAGE) is Reason.UNSUPPORTED_ENGINE
    assert supports("vllm", "text", MediaKind.IMAGE) is Reason.UNSUPPORTED_MODEL


@pytest.mark.parametrize(
    ("version", "enough"),
    [("0.5.12", False), ("0.5.12.post1", False), ("0.5.13", True), ("v0.5.13rc1", True), ("0.6", True), ("1.0.0", True),
     ("0.5", False), ("0.10.2", True), ("", True), ("main", True)],
)  # fmt: skip
def test_an_engine_may_be_too_old(version: str, enough: bool) -> None:
    found = supports("sglang", "qwen3_vl", MediaKind.IMAGE, version)
    assert found is (None if enough else Reason.UNSUPPORTED_ENGINE)
    assert supports("vllm", "qwen3_vl", MediaKind.IMAGE, version) is None
    assert ENGINES["sglang"].since == "0.5.13"
