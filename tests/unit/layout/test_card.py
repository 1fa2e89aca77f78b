"""Model cards: what the folder says counts, its name doesn't, and contradictions close the door to media."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.kv.reason import Reason
from services.layout.card import CardError, ModelCard
from services.layout.families.qwen import PixelBounds, QwenIds, QwenVision
from services.layout.folder import read_folder, resolve_snapshot
from tests.unit.layout.golden import MODELS, card

Edit = Callable[[str, Callable[[dict[str, Any]], Any]], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of Qwen3-VL's folder under a name that says something else; the vocabulary is a link."""
    copy = tmp_path / "llama-2"
    copy.mkdir()
    for file in (MODELS / "qwen3-vl").iterdir():
        if file.name == "tokenizer.json":
            (copy / file.name).symlink_to(file)
        else:
            shutil.copy(file, copy / file.name)
    return copy


@pytest.fixture
def edit(folder: Path) -> Edit:
    def change(name: str, how: Callable[[dict[str, Any]], Any]) -> None:
        value = json.loads((folder / name).read_text())
        how(value)
        (folder / name).write_text(json.dumps(value))

    return change


@pytest.mark.parametrize(
    ("name", "variant", "image", "video"),
    [
        ("qwen2-vl", "qwen2_vl", PixelBounds(3136, 12845056, 14, 2, 2), PixelBounds(3136, 12845056, 14, 2, 2)),
        ("qwen2.5-vl", "qwen2_5_vl", PixelBounds(3136, 12845056, 14, 2, 2), PixelBounds(3136, 12845056, 14, 2, 2)),
        ("qwen3-vl", "qwen3_vl", PixelBounds(65536, 16777216, 16, 2, 2), PixelBounds(4096, 25165824, 16, 2, 2)),
        ("qwen3.5", "qwen3_5", PixelBounds(65536, 16777216, 16, 2, 2), PixelBounds(4096, 25165824, 16, 2, 2)),
    ],
)
def test_the_qwen_folders(name: str, variant: str, image: PixelBounds, video: PixelBounds) -> None:
    found = card(name)
    assert (found.name, found.variant, found.media_reason, found.text_reason) == (name, variant, None, None)
    assert isinstance(found.family, QwenVision)
    assert (found.family.image, found.family.video) == (image, video)
    new = name == "qwen3.5"
    ids = QwenIds(248056, 248057, 248053, 248054) if new else QwenIds(151655, 151656, 151652, 151653)
    assert found.family.ids == ids


def test_the_family_is_found_by_the_config_not_by_the_folders_name(folder: Path) -> None:
    assert ModelCard.load(folder).variant == "qwen3_vl"
    assert ModelCard.load(folder, "served").name == "served"


def test_an_unknown_family_is_known_for_its_text(folder: Path, edit: Edit) -> None:
    edit("config.json", lambda config: config.update(model_type="unheard_of"))
    found = ModelCard.load(folder)
    assert (found.variant, found.family, found.text_reason) == ("text", None, None)
    assert found.media_reason is Reason.UNSUPPORTED_MODEL
    assert "'unheard_of'" in (found.media_detail or "")


@pytest.mark.parametrize(
    ("file", "how", "said"),
    [
        ("config.json", lambda c: c.update(image_token_id=151654), "image_token_id is 151654, the tokenizer says"),
        ("config.json", lambda c: c.pop("vision_end_token_id"), "vision_end_token_id is None"),
        (
            "config.json",
            lambda c: c["vision_config"].update(patch_size=14),
            "patch_size is 14, preprocessor_config.json",
        ),
        ("config.json", lambda c: c["vision_config"].update(spatial_merge_size=4), "spatial_merge_size is 4"),
        ("preprocessor_config.json", lambda c: c.pop("size"), "no usable min_pixels"),
        ("preprocessor_config.json", lambda c: c["size"].update(longest_edge="big"), "no usable max_pixels"),
        ("preprocessor_config.json", lambda c: c.update(do_resize=False), "do_resize"),
        (
            "video_preprocessor_config.json",
            lambda c: c.update(temporal_patch_size=4),
            "temporal_patch_size is 2, video",
        ),
    ],
)
def test_a_folder_that_contradicts_itself_has_no_exact_media(
    folder: Path, edit: Edit, file: str, how: Callable[[dict[str, Any]], Any], said: str
) -> None:
    edit(file, how)
    found = ModelCard.load(folder)
    assert (found.family, found.media_reason, found.text_reason) == (None, Reason.UNSUPPORTED_MODEL, None)
    assert said in (found.media_detail or "")


def test_another_model_class_is_another_model(folder: Path, edit: Edit) -> None:
    edit("config.json", lambda config: config.update(architectures=["Qwen3VLForSomethingElse"]))
    assert ModelCard.load(folder).family is None


def test_flat_pixel_bounds_beat_the_sizes_edges(folder: Path, edit: Edit) -> None:
    edit("preprocessor_config.json", lambda config: config.update(min_pixels=1024, max_pixels=None))
    family = ModelCard.load(folder).family
    assert isinstance(family, QwenVision)
    assert (family.image.min_pixels, family.image.max_pixels) == (1024, 16777216)


def test_a_combined_processor_config_serves_repackaged_checkpoints(folder: Path) -> None:
    sections = {
        "image_processor": json.loads((folder / "preprocessor_config.json").read_text()),
        "video_processor": json.loads((folder / "video_preprocessor_config.json").read_text()),
    }
    (folder / "preprocessor_config.json").unlink()
    (folder / "video_preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps(sections))
    family, expected = ModelCard.load(folder).family, card("qwen3-vl").family
    assert isinstance(family, QwenVision)
    assert isinstance(expected, QwenVision)
    assert (family.image, family.video) == (expected.image, expected.video)


def test_without_a_video_processor_the_image_processors_bounds_hold(folder: Path) -> None:
    (folder / "video_preprocessor_config.json").unlink()
    family = ModelCard.load(folder).family
    assert isinstance(family, QwenVision)
    assert family.video == family.image


class TestTemplates:
    def test_the_jinja_file_comes_first(self, folder: Path) -> None:
        (folder / "chat_template.jinja").write_text("from the file")
        assert ModelCard.load(folder).template == "from the file"

    def test_then_the_processors_then_the_tokenizers(self, folder: Path, edit: Edit) -> None:
        (folder / "chat_template.jinja").unlink()
        edit("chat_template.json", lambda config: config.update(chat_template="processor"))
        edit("tokenizer_config.json", lambda config: config.update(chat_template="tokenizer"))
        found = ModelCard.load(folder)
        assert (found.template, found.tool_template) == ("processor", "tokenizer")
        (folder / "chat_template.json").unlink()
        assert ModelCard.load(folder).template == "tokenizer"

    def test_a_list_of_named_ones(self, folder: Path, edit: Edit) -> None:
        (folder / "chat_template.jinja").unlink()
        (folder / "chat_template.json").unlink()
        named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
        edit("tokenizer_config.json", lambda config: config.update(chat_template=named))
        found = ModelCard.load(folder)
        assert (found.template, found.tool_template) == ("d", "t")

    def test_one_for_tools_beside_the_jinja_file(self, folder: Path) -> None:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
        found = ModelCard.load(folder)
        assert found.tool_template == "with tools"
        assert found.template == (folder / "chat_template.jinja").read_text()

    def test_none_at_all(self, folder: Path, edit: Edit) -> None:
        (folder / "chat_template.jinja").unlink()
        (folder / "chat_template.json").unlink()
        edit("tokenizer_config.json", lambda config: config.pop("chat_template"))
        assert ModelCard.load(folder).text_reason is Reason.TEMPLATE_MISSING

    def test_special_tokens_by_name_are_for_the_template(self, folder: Path, edit: Edit) -> None:
        edit("tokenizer_config.json", lambda config: config.update(bos_token={"content": "<s>"}, unk_token=None))
        assert ModelCard.load(folder).special_tokens == {
            "bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"
        }  # fmt: skip


def test_tokens_an_engine_would_add_make_text_another_text(folder: Path, edit: Edit) -> None:
    edit("tokenizer_config.json", lambda c: c.update(added_tokens_decoder={"151655": {"content": "<|image_pad|>"}}))
    assert ModelCard.load(folder).text_reason is None
    edit("tokenizer_config.json", lambda c: c.update(added_tokens_decoder={"151700": {"content": "<|new|>"}}))
    assert ModelCard.load(folder).text_reason is Reason.TEMPLATE_MISMATCH


def test_special_tokens_nobody_knows_make_text_another_text(folder: Path, edit: Edit) -> None:
    edit("tokenizer_config.json", lambda config: config.update(extra_special_tokens={"x": "<|im_end|>"}))
    assert ModelCard.load(folder).text_reason is None
    edit("tokenizer_config.json", lambda config: config["additional_special_tokens"].append("<|new|>"))
    assert "<|new|>" in (ModelCard.load(folder).text_detail or "")


class TestFolders:
    def test_a_hugging_face_cache_folder_leads_to_its_snapshot(self, folder: Path, tmp_path: Path) -> None:
        cache = tmp_path / "models--Qwen--Qwen3-VL"
        (cache / "snapshots").mkdir(parents=True)
        folder.rename(cache / "snapshots" / "abc123")
        assert ModelCard.load(cache).variant == "qwen3_vl"
        (cache / "snapshots" / "def456").mkdir()
        with pytest.raises(CardError, match="2 snapshots"):
            resolve_snapshot(cache)
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text("abc123\n")
        assert resolve_snapshot(cache).name == "abc123"

    @pytest.mark.parametrize(
        ("file", "content", "said"),
        [
            ("config.json", None, "no config.json"),
            ("config.json", "{", "not JSON"),
            ("config.json", "[]", "holds a list, expected an object"),
            ("config.json", "[" * 100_000, "not JSON"),
            ("tokenizer.json", None, "no tokenizer.json"),
            ("tokenizer.json", "{}", "no usable tokenizer"),
            ("chat_template.jinja", b"\xff\xfe", "not UTF-8"),
        ],
    )
    def test_what_is_missing_or_broken_is_named(
        self, folder: Path, file: str, content: str | bytes | None, said: str
    ) -> None:
        (folder / file).unlink()
        if content is not None:
            (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(CardError, match=said):
            ModelCard.load(folder)

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(CardError, match="is no folder"):
            read_folder(tmp_path / "nowhere")

    def test_a_config_of_absurd_size_is_not_read(self, folder: Path) -> None:
        (folder / "config.json").write_text(" " * (5 << 20))
        with pytest.raises(CardError, match="expected at most"):
            read_folder(folder)
