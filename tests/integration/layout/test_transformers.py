"""Transformers' own processors, in their processes, against the reference vectors and against themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.card import ModelCard
from services.layout.expansion import expand
from services.layout.layouter import Layouter
from services.layout.processor.card import processor_card
from services.layout.processor.processes import Processes
from services.layout.view import View
from services.runtime.offload import end_process, one_process
from tests.integration.layout.whole_chat import whole_chat
from tests.unit.layout.families.reading import image, ranges, spans
from tests.unit.layout.golden import MODELS, golden, unrolled

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="the extra kvroute[processor] is missing")

PIXELS = 300_000
"""Larger vectors are left out: a processor really resizes what it is asked about."""

SEQUENCE = 9
"""Vision tokens of a tile."""


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    made = Processes(1, seconds=60, memory_bytes=4 << 30, remembered=1000)
    yield made
    made.close()


def laid_out(card: ModelCard, prompt: str, sizes: list[list[int]]) -> View:
    assert card.family is not None, card.media_detail
    layouter = Layouter(card)
    return expand(layouter.encode(prompt), [image(*size) for size in sizes], card.family, layouter.encode)


@pytest.mark.parametrize(
    ("folder", "vectors"),
    [("qwen2.5-vl", "qwen2_5_vl_image"), ("qwen3-vl", "qwen3_vl_image")],
)
def test_images_of_a_known_family_are_laid_out_as_the_engine_does(
    folder: str, vectors: str, processes: Processes
) -> None:
    card = processor_card(ModelCard.load(MODELS / folder), processes)
    data = golden(vectors)
    cases = [case for case in data["cases"] if case["h"] * case["w"] <= PIXELS]
    assert len(cases) > 20
    for case in cases:
        view = laid_out(card, data["prompt"], [[case["h"], case["w"]]])
        where = (case["h"], case["w"])
        if "error" in case:
            assert view.reason is Reason.UNSUPPORTED_MEDIA, where
            continue
        assert view.reason is None, (where, view.detail)
        assert view.token_ids == unrolled(case["rle"]), where
        assert spans(view) == [(case["placeholder"]["offset"], case["placeholder"]["length"])], where
    for case in data["multi_image_cases"]:
        view = laid_out(card, case["prompt"], case["sizes_hw"])
        assert (view.reason, view.token_ids) == (None, unrolled(case["rle"]))
        assert spans(view) == ranges(case["placeholders"])
    assert view.variant.startswith("processor/transformers-")


def test_a_model_of_no_family_is_laid_out_as_its_processor_lays_out_the_whole_chat(
    processes: Processes, tmp_path: Path
) -> None:
    """Idefics3's: tiles in rows, each with its name as text, and the whole picture after them."""
    folder = idefics3(tmp_path / "idefics3")
    native = ModelCard.load(folder)
    assert (native.family, native.media_reason) == (None, Reason.UNSUPPORTED_MODEL)
    card = processor_card(native, processes)
    sizes = [[64, 80], [16, 16], [333, 517], [2000, 900]]
    content = [part for _ in sizes for part in ({"type": "text", "text": "and"}, {"type": "image_url"})]
    body = {"messages": [{"role": "user", "content": [*content, {"type": "text", "text": "what?"}]}]}
    view = Layouter(card).view(body, [image(*size) for size in sizes])
    assert view.reason is None, view.detail
    child = one_process()
    try:
        said = child.submit(whole_chat, str(folder), Layouter(card).render(body), sizes).result(60)
    finally:
        end_process(child)
    assert view.token_ids == said
    assert [span.vision_tokens % SEQUENCE for span in view.spans] == [0] * len(sizes)
    assert all(span.length > span.vision_tokens > 0 for span in view.spans)


def test_videos_need_torch_and_are_not_taken_without(processes: Processes) -> None:
    card = processor_card(ModelCard.load(MODELS / "qwen2.5-vl"), processes)
    assert card.family is not None
    assert (card.family.placeholder(MediaKind.VIDEO) is None) == (find_spec("torchvision") is None)


@pytest.mark.parametrize("folder", ["nemotron-3-nano-omni", "kimi-k2.5"])
def test_code_that_a_model_folder_brings_is_not_run(folder: str, processes: Processes) -> None:
    card = processor_card(ModelCard.load(MODELS / folder), processes)
    assert (card.family, card.media_reason) == (None, Reason.UNSUPPORTED_MODEL)


def idefics3(folder: Path) -> Path:
    """A checkpoint folder without weights, with a vocabulary of bytes."""
    folder.mkdir()
    special = ["<|begin_of_text|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(special + alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{{ bos_token }}{% for m in messages %}User:{% for part in m.content %}"
        "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}<end_of_utterance>\n"
        "{% endfor %}"
    )
    files = {
        "config.json": {"model_type": "idefics3", "architectures": ["Idefics3ForConditionalGeneration"]},
        "preprocessor_config.json": {
            "image_processor_type": "Idefics3ImageProcessor", "processor_class": "Idefics3Processor",
            "size": {"longest_edge": 728}, "max_image_size": {"longest_edge": 364},
        },
        "processor_config.json": {"processor_class": "Idefics3Processor", "image_seq_len": SEQUENCE},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>",
            "eos_token": "<end_of_utterance>", "chat_template": template,
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
