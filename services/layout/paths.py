"""Which way prompts of a model are laid out: by a known family, by the model's own processor, or by an engine."""

from __future__ import annotations

from services.runtime.settings import LayoutPath, Settings


def layout_path(settings: Settings, model: str) -> LayoutPath:
    """The path of a served model."""
    return settings.layout_by_model.get(model, settings.layout)


def any_path(settings: Settings, path: LayoutPath) -> bool:
    """Whether any model may take this path."""
    return path in (settings.layout, *settings.layout_by_model.values())
