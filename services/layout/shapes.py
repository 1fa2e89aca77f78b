"""What the layout has to know of a medium: its kind and size, or why it can't be laid out."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.media import MediaItem, MediaKind
from services.kv.reason import Reason


@dataclass(frozen=True, slots=True)
class MediaShape:
    """One image, video or audio part, in prompt order.

    Height and width are pixels after EXIF transpose. A video is laid out from the frames the engine samples:
    ``frame_indices`` in the source and the source's ``fps``. With a ``reason`` the item is never exact: it cuts the
    view at its first token.
    """

    kind: MediaKind
    height: int | None = None
    width: int | None = None
    reason: Reason | None = None
    detail: str | None = None
    frames: int | None = None
    frame_indices: tuple[int, ...] | None = None
    fps: float | None = None

    @classmethod
    def of(cls, item: MediaItem) -> MediaShape:
        """The shape of a resolved item; one without an identity is never exact."""
        reason, detail = item.reason, item.detail
        if reason is None and item.identity is None:
            reason, detail = Reason.IDENTITY_NOT_FORWARDABLE, "the item has no identity"
        elif reason is None and not item.forward:
            reason, detail = Reason.IDENTITY_NOT_FORWARDABLE, "the engine can't be told the item's identity"
        return cls(
            kind=item.kind,
            height=item.height,
            width=item.width,
            reason=reason,
            detail=detail,
            frames=item.frames,
            frame_indices=None if item.frame_indices is None else tuple(item.frame_indices),
            fps=item.fps,
        )
