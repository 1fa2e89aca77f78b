"""One of the eligible slots: the cheapest, ties broken by a generator that can be run again, or a softmax draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from services.router.cost import Terms, cost_terms
from services.router.draw import Draw
from services.router.policies import Policy
from services.router.situation import Parameters, Prompt, SlotView

TIE = 1e-9
"""Costs closer than this are the same."""


@dataclass(slots=True)
class Scored:
    """A slot with its terms and what the policy makes of them."""

    terms: Terms
    cost: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen slot, the others from best to worst, and how close it was."""

    chosen: Scored
    others: tuple[Scored, ...]
    ties: int
    margin: float | None


def choose(prompt: Prompt, slots: Sequence[SlotView], policy: Policy, parameters: Parameters, seed: int) -> Choice:
    """Score the slots (at least one, in the order of worker and rank) and choose."""
    draw = Draw(seed)
    terms = cost_terms(prompt, slots, parameters)
    costs = policy.costs(prompt, terms, parameters, draw)
    scored = [Scored(term, cost) for term, cost in zip(terms, costs, strict=True)]
    least = min(costs)
    tied = [place for place, cost in enumerate(costs) if cost - least <= TIE]
    place = _soft(costs, parameters.temperature, draw) if parameters.temperature > 0 else tied[draw.below(len(tied))]
    chosen = scored.pop(place)
    scored.sort(key=lambda one: one.cost)
    margin = scored[0].cost - chosen.cost if scored else None
    return Choice(chosen, tuple(scored), len(tied), margin)


def _soft(costs: Sequence[float], temperature: float, draw: Draw) -> int:
    """Draw with probability proportional to exp(-normalised cost / temperature); costs are normalised to 0..1."""
    least, most = min(costs), max(costs)
    spread = most - least or 1.0
    weights = [math.exp(-(cost - least) / spread / temperature) for cost in costs]
    mark = draw.uniform() * sum(weights)
    for place, weight in enumerate(weights):
        mark -= weight
        if mark < 0:
            return place
    return len(costs) - 1
