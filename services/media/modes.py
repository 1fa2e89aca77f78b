"""Which media identity mode a request gets. Pure.

Precedence, first that is set: the request's own ``identity``; ``KVROUTE_IDENTITY_BY_MODEL`` for its model;
``KVROUTE_IDENTITY``.
"""

from __future__ import annotations

from enum import StrEnum

from services.runtime.errors import ConfigError
from services.runtime.settings import Settings


class Mode(StrEnum):
    """What an image's identity is made of."""

    URL = "url"
    CONTENT = "content"
    VALIDATED = "validated"


class Modes:
    """The settings' modes, checked once."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError when a model is given an unknown mode."""
        self._default = Mode(settings.identity)
        self._by_model: dict[str, Mode] = {}
        for model, name in settings.identity_by_model.items():
            if name not in list(Mode):
                raise ConfigError(
                    f"KVROUTE_IDENTITY_BY_MODEL gives {model} the mode {name!r}, expected one of {', '.join(Mode)}"
                )
            self._by_model[model] = Mode(name)

    def of(self, model: str, requested: str | None) -> Mode:
        """The mode of one request."""
        return Mode(requested) if requested else self._by_model.get(model, self._default)
