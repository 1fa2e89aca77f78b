"""The models this process can lay out: loaded when first asked for, once each, in whatever thread asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from services.layout.card import CardError, ModelCard
from services.layout.layouter import Layouter
from services.runtime.settings import Settings

Problem = Callable[[str, str], None]
"""Told the model and what is wrong with its folder."""

Dress = Callable[[ModelCard], ModelCard]
"""Puts other layouts in place of the family's."""


class Cards:
    """Layouters by served model name. Thread-safe; a folder that can't be used is reported once and remembered."""

    def __init__(
        self,
        folders: dict[str, Path],
        *,
        cache_tokens: int = 0,
        on_problem: Problem = lambda model, what: None,
        dress: Dress = lambda card: card,
    ) -> None:
        """``dress`` is called once for each model, where its card is loaded."""
        self._folders = dict(folders)
        self._dress = dress
        self._cache_tokens = cache_tokens
        self._on_problem = on_problem
        self._loaded: dict[str, Layouter | None] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        on_problem: Problem = lambda model, what: None,
        dress: Dress = lambda card: card,
    ) -> Cards:
        """The models the settings name; ``models_dir`` is looked at once, now."""
        folders = {} if settings.models_dir is None else _subfolders(settings.models_dir)
        folders |= {name: Path(folder) for name, folder in settings.models.items()}
        return cls(folders, cache_tokens=settings.layout_cache_tokens, on_problem=on_problem, dress=dress)

    @property
    def names(self) -> list[str]:
        """Served names that have a folder."""
        return sorted(self._folders)

    def __contains__(self, model: str) -> bool:
        return model in self._folders

    def loaded(self, model: str) -> bool:
        """Whether ``get`` answers at once."""
        return model in self._loaded

    def get(self, model: str) -> Layouter | None:
        """The model's layouter, None if it has no folder or an unusable one. May take seconds the first time."""
        if model in self._loaded:
            return self._loaded[model]
        folder = self._folders.get(model)
        if folder is None:
            return None
        with self._lock:
            if model not in self._loaded:
                self._loaded[model] = self._load(model, folder)
            return self._loaded[model]

    def _load(self, model: str, folder: Path) -> Layouter | None:
        try:
            layouter = Layouter(self._dress(ModelCard.load(folder, model)), cache_tokens=self._cache_tokens)
        except (CardError, OSError) as error:
            self._on_problem(model, str(error))
            return None
        if layouter.card.media_detail is not None:
            self._on_problem(model, layouter.card.media_detail)
        return layouter


def _subfolders(parent: Path) -> dict[str, Path]:
    if not parent.is_dir():
        return {}
    return {entry.name: entry for entry in sorted(parent.iterdir()) if (entry / "config.json").is_file()}
