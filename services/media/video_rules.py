"""Which sampling rule the videos of a served model have: read once from its folder's config.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.kv.checkpoint import CardError, model_type_of
from services.kv.reason import Reason
from services.kv.sampling import Sampling
from services.media.unusable import Unusable
from services.runtime.settings import Settings
from services.runtime.video_sampling import video_sampling


class VideoRules:
    """Rules by served name. An adapter has its model's."""

    def __init__(self, settings: Settings, model_of: Callable[[str], str] = lambda name: name) -> None:
        self._settings = settings
        self._model_of = model_of
        self._known: dict[str, Sampling | Unusable] = {}

    def of(self, model: str) -> Sampling:
        """The rule for a model. Raises Unusable saying why its videos have none."""
        if not self._settings.media_decode_videos:
            raise Unusable(Reason.DECODE_DISABLED, "videos are not decoded (KVROUTE_MEDIA_DECODE_VIDEOS is off)")
        model = self._model_of(model)
        folder = self._folder(model)
        if folder is None:
            raise Unusable(Reason.UNSUPPORTED_MODEL, "no model folder says how the model's videos are sampled")
        known = self._known.get(model)
        if known is None:
            known = self._known[model] = self._read(model, folder)
        if isinstance(known, Unusable):
            raise known.again()
        return known

    def hands_frames(self, model: str) -> bool:
        """Whether engines get a model's videos as the frames that were hashed."""
        return self._model_of(model) in self._settings.video_forward_frames

    def _folder(self, model: str) -> Path | None:
        settings = self._settings
        if model in settings.models:
            return Path(settings.models[model])
        if settings.models_dir is not None and Path(model).name == model and (settings.models_dir / model).is_dir():
            return settings.models_dir / model
        return None

    def _read(self, model: str, folder: Path) -> Sampling | Unusable:
        try:
            kind = model_type_of(folder)
        except (CardError, OSError) as error:
            return Unusable(Reason.UNSUPPORTED_MODEL, f"the model folder can't be used: {error}"[:200])
        rule = video_sampling(self._settings, model, kind)
        if rule is None:
            return Unusable(Reason.UNSUPPORTED_MEDIA, f"no sampling of videos is known for model_type {kind!r}"[:200])
        return rule
