"""What goes to a processor's process and what comes back. Imports next to nothing: every process pays for it."""

from __future__ import annotations

from dataclasses import dataclass


class ProcessorRefused(Exception):
    """The processor can't be used, or refuses a medium. The text is for people."""


class ProcessorTooSmall(Exception):
    """A medium takes more memory than the process may have."""


@dataclass(frozen=True, slots=True)
class Medium:
    """One image or video, by its shape. Sizes in pixels; a video by the frames the model sees."""

    kind: str
    height: int
    width: int
    frame_indices: tuple[int, ...] = ()
    fps: float = 0.0


@dataclass(frozen=True, slots=True)
class Placeholder:
    """What a chat template leaves for a medium, as token and as text, and the ids that stand for vision features."""

    token: int
    text: str
    features: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """A model's processor: its class, the library's version, what it takes.

    ``specials`` are the ids of the vocabulary's special tokens. A kind that is None is not taken: of videos that is
    so wherever torch and torchvision are missing.
    """

    version: str
    processor: str
    image: Placeholder | None
    video: Placeholder | None
    specials: frozenset[int]
