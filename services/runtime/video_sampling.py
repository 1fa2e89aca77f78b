"""How the videos of a model are sampled: its loader's rule, as the settings say the engines are started."""

from __future__ import annotations

from services.kv.sampling import LOADERS, Loader, Sampling
from services.runtime.settings import Settings


def video_sampling(settings: Settings, model: str, model_type: str) -> Sampling | None:
    """The rule for a served model of a ``model_type``; None for a family without exact videos."""
    loader = LOADERS.get(model_type)
    if loader is None:
        return None
    frames = settings.video_num_frames_by_model.get(model, settings.video_num_frames)
    return Sampling.usual(loader, settings.video_fps_by_model.get(model), frames if loader is Loader.OPENCV else None)
