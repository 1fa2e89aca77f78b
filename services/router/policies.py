"""The routing policies. Each turns the slots' terms into one number a slot, lower is better; the choice does the rest.

| policy | chooses | good for |
|---|---|---|
| kv | least prefill and decode work in blocks, cached blocks credited (the reference) | shared prefixes under load |
| ttft | least estimated time to the first token | interactive use, prompts of very different length |
| prefix_affinity | the prefix's home by rendezvous hashing, unless it is overloaded | engines without KV events |
| least_loaded | least work in flight, caches ignored | prompts that share nothing |
| power_of_two | the less loaded of two drawn at random | very many workers, several routers |
| round_robin | the next one in turn | comparing |
| random | any | comparing |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xxhash import xxh3_64_intdigest

from services.router.cost import Terms
from services.router.draw import Draw
from services.router.situation import Parameters, Prompt


class Policy(Protocol):
    """Costs of all eligible slots at once: slots stand in the order of worker and rank."""

    name: str
    version: str
    """Changes whenever the same situation would give other costs: a recorded decision names it."""

    def costs(self, prompt: Prompt, terms: Sequence[Terms], parameters: Parameters, draw: Draw) -> list[float]:
        """One finite number a slot."""
        ...


class Kv:
    """The reference: the cost of cost.py."""

    name = "kv"
    version = "1"

    def costs(self, prompt: Prompt, terms: Sequence[Terms], parameters: Parameters, draw: Draw) -> list[float]:
        """Blocks of work. Slots with larger blocks are counted in the smallest slot's blocks."""
        return [term.cost * scale for term, scale in zip(terms, _scales(terms), strict=True)]


class RoundRobin:
    """One after another, by the turn the router counts."""

    name = "round_robin"
    version = "1"

    def costs(self, prompt: Prompt, terms: Sequence[Terms], parameters: Parameters, draw: Draw) -> list[float]:
        """How many turns a slot still has to wait."""
        return [float((place - int(parameters.turn)) % len(terms)) for place in range(len(terms))]


class Random:
    """Any slot."""

    name = "random"
    version = "1"

    def costs(self, prompt: Prompt, terms: Sequence[Terms], parameters: Parameters, draw: Draw) -> list[float]:
        """A number drawn for each slot."""
        return [draw.uniform() for _ in terms]


class LeastLoaded:
    """The slot with the least work in flight."""

    name = "least_loaded"
    version = "1"

    def costs(self, prompt: Prompt, terms: Sequence[Terms], parameters: Parameters, draw: Draw) -> list[float]:
        """Blocks in flight."""
        return _loads(terms)


class PowerOfTwo:
    """Two slots are drawn, the less loaded one is taken: nearly as even as looking at all, and no herd."""

    name = "power_of_two"
    version = "1"

    def costs(self, prompt: Prompt, terms: Sequence[Terms], parameters: Parameters, draw: Draw) -> list[float]:
        """Blocks in flight; slots that were not drawn rank behind those that were."""
        loads = _loads(terms)
        first = draw.below(len(terms))
        second = (first + 1 + draw.below(len(terms) - 1)) % len(terms) if len(terms) > 1 else first
        behind = max(loads) + 1.0
        return [load if place in (first, second) else load + behind for place, load in enumerate(loads)]


class PrefixAffinity:
    """Every prefix has a home, found by rendezvous hashing, so that a worker more or less moves few prefixes.

    The prefix is the session, if the request names one, else the first 16 blocks. A home with more than 1.25 times
    the mean of requests (and one more) passes requests on to the next in its order.
    """

    name = "prefix_affinity"
    version = "1"

    BLOCKS = 16
    FACTOR = 1.25

    def costs(self, prompt: Prompt, terms: Sequence[Terms], parameters: Parameters, draw: Draw) -> list[float]:
        """A slot's place in the prefix's order; overloaded slots stand behind all others."""
        keys = [f"{self._prefix(prompt, t)}@{t.slot.life.worker_id}/{t.slot.life.dp_rank}" for t in terms]
        order = sorted(range(len(terms)), key=lambda place: xxh3_64_intdigest(keys[place].encode()), reverse=True)
        bound = self.FACTOR * sum(t.slot.active_requests for t in terms) / len(terms) + 1
        costs = [0.0] * len(terms)
        for rank, place in enumerate(order):
            overloaded = terms[place].slot.active_requests > bound
            costs[place] = float(rank + len(terms) * overloaded)
        return costs

    def _prefix(self, prompt: Prompt, term: Terms) -> str:
        if prompt.session_id is not None:
            return f"session:{prompt.session_id}"
        addresses = prompt.addresses.get(term.slot.block_size, ())
        return f"prefix:{addresses[min(len(addresses), self.BLOCKS) - 1]}" if addresses else f"request:{prompt.request}"


class Ttft:
    """The slot that should answer first: prefill before and of this prompt at the prefill rate, then the queue."""

    name = "ttft"
    version = "1"

    def costs(self, prompt: Prompt, terms: Sequence[Terms], parameters: Parameters, draw: Draw) -> list[float]:
        """Estimated milliseconds to the first token."""
        return [self._milliseconds(term, parameters) for term in terms]

    @staticmethod
    def _milliseconds(term: Terms, parameters: Parameters) -> float:
        slot = term.slot
        prefill = (slot.active_prefill_tokens + term.reuse.new_prefill_tokens) / parameters.prefill_rate * 1000
        # A request that waits or decodes takes its share of every step until the first token comes.
        steps = slot.reported.get("waiting", 0.0) + 1
        return prefill + steps * parameters.decode_interval_ms + parameters.request_weight * slot.active_requests


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (Kv(), RoundRobin(), Random(), LeastLoaded(), PowerOfTwo(), PrefixAffinity(), Ttft())
}
"""By name, as the setting ``policy`` says it."""


def _scales(terms: Sequence[Terms]) -> list[float]:
    smallest = min(term.slot.block_size for term in terms)
    return [term.slot.block_size / smallest for term in terms]


def _loads(terms: Sequence[Terms]) -> list[float]:
    return [
        (t.slot.active_prefill_tokens / t.slot.block_size + t.slot.active_decode_blocks) * scale
        for t, scale in zip(terms, _scales(terms), strict=True)
    ]
