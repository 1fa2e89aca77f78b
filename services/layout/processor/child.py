"""Runs in a processor's process: loads transformers, and asks a model's processor what it puts in a medium's place.

The processor gets a grey stand-in of the medium's size: how many tokens a medium takes is a matter of its size, and
probes with noisy pictures prove that of each engine. So media need not be fetched, decoded or moved for their layout.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from services.layout.processor.asked import Description, Medium, Placeholder, ProcessorRefused, ProcessorTooSmall

GREY = 127
MODALITIES = ("image", "video")

T = TypeVar("T")
_loaded: dict[str, Any] = {}


def describe(folder: str) -> Description:
    """The processor of a model folder. Raises ProcessorRefused."""
    return speaking(lambda: _description(_processor(folder)))


def expand(folder: str, medium: Medium) -> list[int]:
    """Token ids the processor puts in a medium's place. Raises ProcessorRefused, ProcessorTooSmall."""
    return speaking(lambda: _expansion(_processor(folder), medium))


def _description(processor: Any) -> Description:
    import transformers

    image, video = (_placeholder(processor, modality) for modality in MODALITIES)
    return Description(
        version=transformers.__version__,
        processor=type(processor).__name__,
        image=image if hasattr(processor, "image_processor") else None,
        video=video if _takes_videos(processor) else None,
        specials=frozenset(processor.tokenizer.added_tokens_decoder),
    )


def _takes_videos(processor: Any) -> bool:
    return not isinstance(getattr(processor, "video_processor", None), _NoVideos | None)


def _placeholder(processor: Any, modality: str) -> Placeholder | None:
    text = getattr(processor, f"{modality}_token", None)
    tokenizer = getattr(processor, "tokenizer", None)
    if not isinstance(text, str) or tokenizer is None:
        return None
    token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(token_ids) != 1:
        return None
    named = getattr(processor, f"{modality}_token_ids", None) or [getattr(processor, f"{modality}_token_id", None)]
    features = tuple(sorted({token for token in named if isinstance(token, int)}))
    return Placeholder(token_ids[0], text, features or (token_ids[0],))


def _expansion(processor: Any, medium: Medium) -> list[int]:
    text = [getattr(processor, f"{medium.kind}_token")]
    if medium.kind == "image":
        picture = Image.new("RGB", (medium.width, medium.height), (GREY, GREY, GREY))
        made = _of_picture(partial(processor, text=text, images=[picture], add_special_tokens=False))
    else:
        made = processor(text=text, add_special_tokens=False, **_clip(medium))
    (token_ids,) = made["input_ids"]
    return [int(token) for token in token_ids]


def _of_picture(process: Callable[..., Any]) -> Any:
    """Only how many tokens there are is asked: work on the pixels' values is left out where the processor allows it."""
    try:
        return process(do_rescale=False, do_normalize=False)
    except (TypeError, ValueError):
        return process()


def _clip(medium: Medium) -> dict[str, Any]:
    from transformers.video_utils import VideoMetadata

    taken = len(medium.frame_indices)
    metadata = VideoMetadata(
        total_num_frames=max(medium.frame_indices) + 1, fps=medium.fps, frames_indices=list(medium.frame_indices)
    )
    frames = np.full((taken, medium.height, medium.width, 3), GREY, np.uint8)
    return {"videos": [frames], "video_metadata": [metadata], "do_sample_frames": False}


def _processor(folder: str) -> Any:
    if folder not in _loaded:
        _loaded[folder] = _load(folder)
    return _loaded[folder]


def _load(folder: str) -> Any:
    # A model folder is all there is: nothing is fetched, and no code in it is run.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
    try:
        import transformers
    except ImportError:
        raise ProcessorRefused(
            "transformers is not installed: install kvroute[processor], or set KVROUTE_LAYOUT=native"
        ) from None
    made = partial(
        transformers.AutoProcessor.from_pretrained, folder, local_files_only=True, trust_remote_code=False
    )
    try:
        processor = made()
    except ImportError:
        _without_videos(transformers)
        processor = made()
    if not isinstance(processor, transformers.ProcessorMixin) or not hasattr(processor, "tokenizer"):
        raise ProcessorRefused(f"transformers knows no processor for it, only a {type(processor).__name__}")
    return processor


def _without_videos(transformers: Any) -> None:
    """Without torchvision there are no video processors, and no processor that has one: it gets a stand-in."""
    from transformers.models.auto.video_processing_auto import AutoVideoProcessor

    checked = transformers.ProcessorMixin.check_argument_for_proper_class

    def check(self: Any, name: str, argument: Any) -> Any:
        return _NoVideos if isinstance(argument, _NoVideos) else checked(self, name, argument)

    none: Any = classmethod(lambda cls, *args, **kwargs: _NoVideos())
    setattr(AutoVideoProcessor, "from_pretrained", none)  # noqa: B010 - for no one but this process
    transformers.ProcessorMixin.check_argument_for_proper_class = check


class _NoVideos(dict[str, Any]):
    """Stands where a video processor would; a dict, since the library writes its parts as JSON."""


def speaking(work: Callable[[], T]) -> T:
    """Errors that can travel between processes, in words: libraries' own often can't."""
    try:
        return work()
    except ProcessorRefused:
        raise
    except MemoryError:
        raise ProcessorTooSmall("the processor ran out of its memory (KVROUTE_PROCESSOR_MEMORY_BYTES)") from None
    except Exception as error:  # processors raise whatever they stumble over
        raise ProcessorRefused(f"{type(error).__name__}: {error}"[:300]) from None
