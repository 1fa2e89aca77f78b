"""Names of layout variants: the family, then what differs, such as ``qwen3_vl/transformers-5.15/evs-0.5``.

They travel in workers' contracts and stand in decisions, so a name never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence

from xxhash import xxh3_64_hexdigest

SEPARATOR = "/"
PROCESSOR = "processor"
"""Stands where a family does, for layouts that a model's own processor makes."""

RENDER = "render"
"""Likewise, for layouts that an engine makes itself."""

_PRUNING = "evs-"
_AT = "at-"


class UnknownVariant(ValueError):
    """A contract names a layout that this model's family does not have."""


def named(family: str, *parts: str) -> str:
    """The name of a family's variant; empty parts are the family's usual layout and left out."""
    return SEPARATOR.join([family, *filter(None, parts)])


def family_of(variant: str) -> str:
    """The family a variant belongs to."""
    return variant.partition(SEPARATOR)[0]


def parts_of(variant: str, family: str) -> list[str]:
    """What a variant says beside the family. Raises UnknownVariant for another family's."""
    found, *parts = variant.split(SEPARATOR)
    if found != family:
        raise UnknownVariant(f"the layout {variant!r} is not one of {family}")
    return parts


def place_part(url: str | None) -> str:
    """How the server that renders stands in a name; empty where workers render themselves."""
    return "" if url is None else f"{_AT}{xxh3_64_hexdigest(url.rstrip('/').encode())}"


def place_of(variant: str) -> str:
    """The part of a name that says who renders; empty where workers do, or nothing is rendered."""
    part = variant.rpartition(SEPARATOR)[2]
    return part if part.startswith(_AT) else ""


def pruning_part(rate: float) -> str:
    """How a video pruning rate stands in a name; empty for none. Raises ValueError for rates out of range."""
    if not 0 <= rate < 1:
        raise ValueError(f"the video pruning rate is {rate}, expected at least 0 and under 1")
    return f"{_PRUNING}{float(rate)!r}" if rate else ""


def pruning_rate(parts: Sequence[str]) -> float:
    """The pruning rate a name ends with, 0 for none. Raises UnknownVariant when that is no rate."""
    if not parts or not parts[-1].startswith(_PRUNING):
        return 0.0
    try:
        rate = float(parts[-1].removeprefix(_PRUNING))
        if pruning_part(rate) != parts[-1]:
            raise ValueError
    except ValueError:
        raise UnknownVariant(f"{parts[-1]!r} names no video pruning rate") from None
    return rate


def require(found: str, wanted: str) -> None:
    """Raises UnknownVariant unless a variant made from ``wanted`` has that very name."""
    if found != wanted:
        raise UnknownVariant(f"the layout {wanted!r} is unknown, the nearest is {found!r}")
