"""Media whose identifiers come back changed, and which of ours they are. Pure.

With ``mm_processor_kwargs``, or ``media_io_kwargs`` for a kind of media, an engine names a medium by a hash of the
uuid it was sent *and* the arguments. The hash stands for one uuid, so once it is known whose it is, it stays so. That
is learnt from an event and the prompt it comes from, in one of two ways:

* ``session``: the engine says in its events the session id a request came with (vLLM from 0.30). A request without
  one gets one of this agent's own, which no other request has; a client's own may be shared, see below.
* ``tokens``: of all prompts this agent sent, one explains the event.

In both ways the blocks announced must stand at the very addresses predicted for the prompt: its token ids, its media's
places, everything before them. Where several prompts could explain an event they must agree on whose the name is;
prompts whose media can't be told (no identity was sent) could be anything. What is not certain has no name: the block
is left out and counted. A binding that is missing costs a hit, a wrong one would give a request another medium's KV.
"""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from services.kv.address import Span, chain, local_hash, token_bytes_of
from services.kv.identity import is_ours, parse_engine_uuid
from services.worker.engines.events import Cause, Keys, Stored
from services.worker.sent_prompts import SentPrompt, SentPrompts

KEPT = 200_000
"""Names remembered; an engine's cache holds fewer media."""

Names = dict[str, int]


class Binding(StrEnum):
    """How changed identifiers are bound; a worker's contract says it by kind of media."""

    NONE = ""
    SESSION = "session"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class _Match:
    """A prompt that explains an event: whose the names then are. ``open``: it says nothing about a later block."""

    names: Names
    open: bool


@dataclass(slots=True)
class Bindings:
    """What one engine's changed identifiers stand for. All its ranks share it."""

    monotonic: Callable[[], float]
    mode: Binding = Binding.NONE
    probing: bool = False
    """While probes run, whichever way works is taken."""
    refused: Counter[Cause] = field(default_factory=Counter)
    """Events whose media could not be told, by cause."""
    doubts: int = 0
    """Times that what was concluded turned out to be doubtful: whatever was published with it must go."""
    _sent: SentPrompts = field(init=False)
    _known: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _how: dict[int, Binding] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _distrusted: bool = False
    _nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    _sessions: int = 0

    def __post_init__(self) -> None:
        """Begin with nothing sent."""
        self._sent = SentPrompts(self.monotonic)

    @property
    def active(self) -> bool:
        """Whether anything is to be bound."""
        return self.probing or self.mode is not Binding.NONE

    @property
    def bound(self) -> int:
        """Names that are known."""
        return len(self._known)

    def renew(self) -> None:
        """Another engine process, which is about to be probed: nothing is known of it."""
        self._sent.clear()
        self._known.clear()
        self._how.clear()
        self._names.clear()
        self._distrusted = False
        self.mode, self.probing = Binding.NONE, True

    def settle(self, ways: Iterable[str]) -> None:
        """Probing is over: how the kinds of media are bound that need it. By tokens if one of them needs that."""
        found = {Binding(way) for way in ways} - {Binding.NONE}
        self.probing = False
        self.mode = Binding.TOKENS if Binding.TOKENS in found else next(iter(found), Binding.NONE)

    def how(self, identity: int) -> Binding:
        """How an identity's changed name was bound; NONE for one that came back as it was told, or never."""
        return self._how.get(identity, Binding.NONE)

    def own_session(self) -> str:
        """A session id no other request has, and that nobody can guess. No client's can begin like this."""
        self._sessions += 1
        return f"~{self._nonce}-{self._sessions}"

    def begin(self, prompt: SentPrompt) -> SentPrompt:
        """A prompt with media is about to be sent."""
        if self.active:
            self._sent.begin(prompt)
        return prompt

    def end(self, prompt: SentPrompt) -> None:
        """It is answered, or given up."""
        self._sent.end(prompt)

    def read(self, event: Stored, parent: int | None, seed: int, at: float) -> Keys:
        """An event's keys with the media named in it. ``parent`` is the address before it, ``at`` the engine's time.

        Blocks from the first one on whose media can't be told are left out.
        """
        keys = event.keys
        if keys.named is None or not self.active:
            return keys
        new = {name for block in keys.named for name, _ in block if not is_ours(name) and name not in self._known}
        cause = None
        if new:
            cause = self._learn(event, parent, seed, at)
            if cause is not None:
                self.refused[cause] += 1
        return self._resolved(keys, cause)

    # Whose a name is

    def _learn(self, event: Stored, parent: int | None, seed: int, at: float) -> Cause | None:
        """Bind what can be bound; why nothing could be, if so."""
        complete = self._sent.complete(at)
        if event.session is not None or self.mode is Binding.SESSION:
            prompts = [] if event.session is None else self._sent.of_session(event.session)
            way = Binding.SESSION
        else:
            prompts, way = list(self._sent), Binding.TOKENS
        if len(prompts) == 1 and prompts[0].own and way is Binding.SESSION:
            match = self._explained(prompts[0], event, parent, seed)
            names = None if match is None else match.names
        else:
            names = self._agreed(prompts, event, parent, seed) if complete and not self._distrusted else None
            if names is None:
                return Cause.AMBIGUOUS_MEDIA
        for name, identity in (names or {}).items():
            self._bind(name, identity, way)
        return None if names else Cause.UNBOUND_MEDIA

    def _agreed(self, prompts: list[SentPrompt], event: Stored, parent: int | None, seed: int) -> Names | None:
        """What all prompts that could explain the event say; nothing if there is none.

        None when one could be anything, or two differ.
        """
        if not all(prompt.whole for prompt in prompts):
            return None
        found = [match for prompt in prompts if (match := self._explained(prompt, event, parent, seed)) is not None]
        names = found[0].names if found else {}
        if any(match.open or match.names != names for match in found):
            return None
        if any(self._names.get(identity, name) != name for name, identity in names.items()):
            # One medium has one name: somebody else's request looks like ours, now or before.
            self._doubt()
            return None
        return names

    def _explained(self, prompt: SentPrompt, event: Stored, parent: int | None, seed: int) -> _Match | None:
        """Whether a prompt's blocks are the event's, as far as its addresses reach."""
        named = event.keys.named or ()
        first = _place_after(prompt, parent)
        if first is None:
            return None
        names: Names = {}
        size, data = event.block_size, token_bytes_of(event.token_ids)
        last = max(block for block, keys in enumerate(named) if keys)
        for block in range(len(event.hashes)):
            index = first + block
            if index >= len(prompt.addresses):
                if block > last:
                    break
                return _Match(names, open=True)
            spans = _overlapping(prompt.spans, index * size, (index + 1) * size)
            keys = named[block] if block < len(named) else ()
            if [offset for _, offset in keys] != [span.offset - index * size for span in spans]:
                return None
            for (name, _), span in zip(keys, spans, strict=True):
                if not self._may_be(name, span.identity, names):
                    return None
            identities = [span.identity for span in spans]
            parent = chain(parent, local_hash(data[block * size * 4 : (block + 1) * size * 4], identities, seed))
            if parent != prompt.addresses[index]:
                return None
        # One medium has one name.
        return _Match(names, open=False) if len(set(names.values())) == len(names) else None

    def _may_be(self, name: str, identity: int, names: Names) -> bool:
        """Whether a name can stand for an identity; if it is new, it does from here on in this match."""
        if is_ours(name):
            return parse_engine_uuid(name) == identity
        known = self._known.get(name)
        if known is not None:
            return known == identity
        return names.setdefault(name, identity) == identity

    def _doubt(self) -> None:
        """Nothing is concluded from tokens more, and what was is forgotten: translators see ``doubts`` grow."""
        self._distrusted = True
        self.doubts += 1
        for name in [name for name, identity in self._known.items() if self.how(identity) is Binding.TOKENS]:
            identity = self._known.pop(name)
            self._names.pop(identity, None)
            self._how.pop(identity, None)

    def _bind(self, name: str, identity: int, way: Binding) -> None:
        self._known[name] = identity
        self._names[identity] = name
        self._how[identity] = way
        if len(self._known) > KEPT:
            _, gone = self._known.popitem(last=False)
            self._names.pop(gone, None)
            self._how.pop(gone, None)

    def _resolved(self, keys: Keys, cause: Cause | None) -> Keys:
        media: list[tuple[int, ...]] = []
        addressable, why = keys.addressable, keys.cause
        for block, names in enumerate(keys.named or ()):
            if addressable is not None and block >= addressable:
                break
            identities = [parse_engine_uuid(name) if is_ours(name) else self._known.get(name) for name, _ in names]
            known = tuple(identity for identity in identities if identity is not None)
            if len(known) < len(identities):
                addressable, why = block, cause or Cause.UNBOUND_MEDIA
                break
            media.append(known)
        return Keys(keys.salt, media, addressable, why, keys.named)


def _place_after(prompt: SentPrompt, parent: int | None) -> int | None:
    """Index of the block that comes after an address in a prompt; None if the address is none of its own."""
    if parent is None:
        return 0
    try:
        return list(prompt.addresses).index(parent) + 1
    except ValueError:
        return None


def _overlapping(spans: tuple[Span, ...], start: int, end: int) -> list[Span]:
    return [span for span in spans if span.offset < end and start < span.offset + span.length]
