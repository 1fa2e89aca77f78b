"""What families without video have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.families.family import NO_MARKERS, Encode, Expansion, Markers, NotExact, refuse_overrides, size_of
from services.layout.families.variants import UnknownVariant
from services.layout.shapes import MediaShape


@dataclass(frozen=True)
class ImageFamily(ABC):
    """One placeholder token for each image, one layout, nothing that depends on other media. Base of families."""

    variant: str
    image_token: int
    image_text: str

    @property
    def video_variant(self) -> str:
        """None: the family has no video."""
        return ""

    def video_variants(self, pruning_rates: Sequence[float] = ()) -> tuple[str, ...]:
        """None."""
        return ()

    def chosen(self, image: str | None = None, video: str | None = None) -> Self:
        """The one layout there is. Raises UnknownVariant for any other."""
        if image not in (None, self.variant) or video:
            raise UnknownVariant(f"{self.variant} has no layout {video or image!r}")
        return self

    def under(self, max_model_len: int | None) -> Self:
        """The same."""
        return self

    def placeholder(self, kind: MediaKind) -> int | None:
        """For images only."""
        return self.image_token if kind is MediaKind.IMAGE else None

    def placeholder_text(self, kind: MediaKind) -> str | None:
        """For images only."""
        return self.image_text if kind is MediaKind.IMAGE else None

    @property
    def media_tokens(self) -> frozenset[int]:
        """The placeholder, of which there are as many as the image has tokens."""
        return frozenset({self.image_token})

    def markers(self, kind: MediaKind) -> Markers:
        """None: only the placeholder is replaced."""
        return NO_MARKERS

    def expand(self, shape: MediaShape, encode: Encode) -> Expansion:
        """Raises NotExact for media that are no images and for sizes that are unknown or refused."""
        if shape.kind is not MediaKind.IMAGE:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, f"{self.variant} has no {shape.kind} input")
        try:
            expansion = self.expand_image(*size_of(shape))
        except (ValueError, ArithmeticError) as error:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, str(error)) from None
        if not expansion.vision_tokens:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, f"an image of {shape.height}x{shape.width} resizes to nothing")
        return expansion

    @abstractmethod
    def expand_image(self, height: int, width: int) -> Expansion:
        """The family's own rule. Raises ValueError for sizes the engine refuses."""

    def unprovable(self, media: Sequence[MediaShape], side_by_side: bool) -> Mapping[int, NotExact]:
        """None: images are laid out each by itself."""
        return {}

    def overridden(self, processor_kwargs: Mapping[str, Any]) -> Self:
        """Raises NotExact for every argument: none is known."""
        refuse_overrides(processor_kwargs)
        return self
