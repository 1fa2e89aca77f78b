"""The layout an agent proves: the model folder of what its engine serves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from schemas.media import MediaKind
from services.layout.card import CardError, ModelCard
from services.layout.families.variants import RENDER
from services.layout.layouter import Layouter
from services.layout.paths import layout_path
from services.layout.processor.card import processor_card
from services.layout.processor.family import ProcessorFamily
from services.layout.processor.processes import Processes
from services.layout.shapes import MediaShape
from services.runtime.settings import Settings
from services.runtime.video_sampling import video_sampling
from services.worker.probes import Videos, video_choices


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """A model's layouter, and what the agent reads from its card."""

    layouter: Layouter
    card: ModelCard
    processes: Processes | None = None
    """What the layouts are asked from, if the model's processor makes them."""

    def close(self) -> None:
        """Nothing more will be laid out."""
        if self.processes is not None:
            self.processes.close()

    @property
    def generic(self) -> bool:
        """Whether the layouts are made by code whose rules are not known here."""
        return isinstance(self.card.family, ProcessorFamily)

    def under(self, max_model_len: int | None) -> ModelLayout:
        """The layout in an engine that takes this many tokens: images of some families depend on it."""
        family = self.card.family
        if family is None or (laid_out := family.under(max_model_len)) is family:
            return self
        card = replace(self.card, family=laid_out)
        return ModelLayout(Layouter(card), card, self.processes)

    @property
    def placeholders(self) -> frozenset[int]:
        """Token ids that stand in media only."""
        return frozenset() if self.card.family is None else self.card.family.media_tokens

    @property
    def lays_images(self) -> bool:
        """Whether the family lays out images."""
        family = self.card.family
        return family is not None and family.placeholder(MediaKind.IMAGE) is not None

    @property
    def pixel_bound(self) -> int | None:
        """Pixels above which the family's processor scales images down."""
        bounds = getattr(self.card.family, "image", None)
        bound = getattr(bounds, "max_pixels", None)
        return bound if isinstance(bound, int) else None

    def videos(self, settings: Settings) -> Videos | None:
        """How the model's videos are to be probed; None for a family without."""
        family, card = self.card.family, self.card
        sampling = video_sampling(settings, card.name, card.model_type)
        variants = video_choices(family, settings.worker_video_pruning)
        if family is None or sampling is None or not variants:
            return None
        two = (MediaShape(MediaKind.VIDEO), MediaShape(MediaKind.VIDEO))
        return Videos(
            sampling, variants, several=not family.unprovable(two, side_by_side=False),
            frames=card.name in settings.video_forward_frames,
        )  # fmt: skip

    def rendered_videos(self, settings: Settings) -> Videos | None:
        """As ``videos``, of an engine that lays them out itself: only how frames are taken is ours."""
        family, videos = self.card.family, self.videos(settings)
        return None if family is None or videos is None else replace(videos, variants={RENDER: family}, frames=False)


def folder_of(settings: Settings, model: str) -> Path | None:
    """The model folder settings name for a served model."""
    if settings.worker_model_dir is not None:
        return settings.worker_model_dir
    if model in settings.models:
        return Path(settings.models[model])
    if settings.models_dir is not None and (settings.models_dir / model).is_dir():
        return settings.models_dir / model
    return None


def load_layout(settings: Settings, model: str) -> ModelLayout:
    """Load it: blocking, for a thread. Raises CardError."""
    folder = folder_of(settings, model)
    if folder is None:
        raise CardError(
            f"no model folder for {model}: set KVROUTE_WORKER_MODEL_DIR, KVROUTE_MODELS={model}=FOLDER or "
            "KVROUTE_MODELS_DIR"
        )
    card = ModelCard.load(folder, model)
    if layout_path(settings, model) != "processor":
        return ModelLayout(Layouter(card), card)
    processes = Processes.of(settings)
    card = processor_card(card, processes)
    return ModelLayout(Layouter(card), card, processes)
