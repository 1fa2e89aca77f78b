"""The model folder that comes with a source checkout: what ``kvroute up`` serves unless told otherwise."""

from __future__ import annotations

from pathlib import Path

from services.runtime.errors import ConfigError
from services.runtime.settings import Settings

SHIPPED_MODEL = Path(__file__).resolve().parents[2] / "tests" / "models" / "qwen2.5-vl"
"""An installed wheel has none, so ``--model`` must be given there."""


def default_model(model: Path | None) -> Path:
    """The folder to serve: the given one, or the checkout's own. Raises ConfigError when there is neither."""
    folder = model or SHIPPED_MODEL
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder} is no model folder (no config.json): give --model FOLDER with config.json, "
            "preprocessor_config.json, tokenizer.json and chat_template.jinja"
        )
    return folder


def shipped_folder(settings: Settings, model: str) -> Path | None:
    """The checkout's own folder when it is the model's and the settings name no other."""
    named = model in settings.models or (settings.models_dir is not None and (settings.models_dir / model).is_dir())
    if model != SHIPPED_MODEL.name or named or not (SHIPPED_MODEL / "config.json").is_file():
        return None
    return SHIPPED_MODEL
