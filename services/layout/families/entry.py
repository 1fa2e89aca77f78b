"""What the registry knows of a family: which checkpoints are of it, how it is built, what is exact, who says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.kv.reason import Reason
from services.layout.families.family import Family
from services.layout.families.parameters import Checkpoint

Build = Callable[[str, Checkpoint], Family]
"""Makes the layout of a checkpoint of a model_type. Raises UnusableFamily."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Whether a kind of medium is laid out token for token.

    ``condition`` is what exactness hangs on, or why there is none; ``reasons`` are those this family itself can give;
    ``checked_against`` names the reference vectors (files of tests/golden/layout) the tests compare with.
    """

    exact: bool
    condition: str = ""
    reasons: tuple[Reason, ...] = ()
    checked_against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A family. ``architectures`` maps the model classes its layout was checked with to their model_type.

    ``engines`` is the family's name in the table of engines.
    """

    title: str
    engines: str
    architectures: Mapping[str, str]
    build: Build
    image: Coverage
    video: Coverage

    @property
    def model_types(self) -> tuple[str, ...]:
        """Values of ``model_type`` in config.json, in order."""
        return tuple(dict.fromkeys(self.architectures.values()))
