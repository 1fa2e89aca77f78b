"""Which layout an engine's answers to the probes fit. Pure.

An engine that refuses a probe has answered it: a layout under which the engine's processor refuses the same medium
agrees. Only a medium larger than all that were accepted before it, or one more of them, is a bound instead: requests
beyond it are not exact, whatever the layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.layout.view import View
from services.worker.probe_requests import Probe


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine said to a probe: its token ids, or why it refused."""

    probe: Probe
    tokens: Sequence[int] | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the answers cover. None: no probe was refused for its size, or for the number of its media."""

    max_pixels: int | None = None
    max_items: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The layouts that fit every answer, and for the others where they part from the engine first."""

    fitting: tuple[str, ...]
    differences: Mapping[str, str] = field(default_factory=dict)


def within_bounds(answers: Sequence[Answer]) -> tuple[list[Answer], Bounds]:
    """The answers a layout has to fit, and the bounds that refusals set. ``answers`` are in the order of asking."""
    kept: list[Answer] = []
    pixels = items = 0
    max_pixels = max_items = None
    for answer in answers:
        probe = answer.probe
        if answer.tokens is not None:
            pixels, items = max(pixels, probe.pixels), max(items, len(probe.shapes))
        elif items and len(probe.shapes) > items:
            max_items = items
            continue
        elif pixels and probe.pixels > pixels:
            max_pixels = pixels
            continue
        kept.append(answer)
    return kept, Bounds(max_pixels, max_items)


def covered(answers: Sequence[Answer]) -> Bounds:
    """The largest medium and the most media of the probes that were answered with tokens."""
    probes = [answer.probe for answer in answers if answer.tokens is not None]
    return Bounds(
        max((probe.pixels for probe in probes), default=0), max((len(probe.shapes) for probe in probes), default=0)
    )


def difference(answer: Answer, view: View) -> str | None:
    """Where an answer parts from a layout's view of the probe; None where they say the same."""
    name = answer.probe.name
    if answer.tokens is None:
        return None if not view.exact and answer.probe.shapes else f"probe {name}: {answer.refusal}"
    if not view.exact:
        return f"probe {name}: our layout is not exact: {view.reason}, {view.detail}"
    parted = first_difference(view.token_ids, answer.tokens)
    return None if parted is None else f"probe {name}: {parted}"


def judge(answers: Sequence[Answer], views: Mapping[str, Sequence[View]]) -> Verdict:
    """Which layouts fit. ``views`` holds each layout's view of each answer's probe."""
    fitting: list[str] = []
    differences: dict[str, str] = {}
    for variant, seen in views.items():
        parted = (difference(answer, view) for answer, view in zip(answers, seen, strict=True))
        found = next((text for text in parted if text is not None), None)
        if found is None:
            fitting.append(variant)
        else:
            differences[variant] = found
    return Verdict(tuple(fitting), differences)


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> str | None:
    """Where two token lists part, with what stands around it; None when they are equal."""
    if list(ours) == list(theirs):
        return None
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return (
        f"the token lists part at {at}: ours {list(ours[at : at + 8])} of {len(ours)}, "
        f"the engine's {list(theirs[at : at + 8])} of {len(theirs)}, "
        f"after {list(theirs[max(0, at - 4) : at])}"
    )
