"""Damaged and newer KV events: they are refused or counted, and never become an address that is not the prefix's."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from services.worker.engines.events import Batch, Decodes, EngineEventError
from services.worker.engines.sglang import SglangEvents
from services.worker.engines.trtllm import TrtllmEvents
from services.worker.engines.vllm import VllmEvents
from services.worker.engines.vllm_keys import Dialect, KeyReader
from services.worker.translate import Translator
from tests.unit.worker.recordings import BLOCK_SIZE, IMAGE_PAD, VIDEO_PAD, load

PLACEHOLDERS = frozenset({IMAGE_PAD, VIDEO_PAD})
RECORDED = ("q25vl_bs16", "q3vl_bs16")
EXAMPLES = 150


def decoder() -> VllmEvents:
    return VllmEvents(KeyReader(Dialect.PAIRS, PLACEHOLDERS))


@cache
def payloads() -> tuple[bytes, ...]:
    """Recorded batches of prompts without a salt: a salt that is taken out can't be noticed by anybody."""
    return tuple(
        payload
        for name in RECORDED for case in load(name) if case.cache_salt is None and "salt" not in case.name
        for payload in case.payloads
    )  # fmt: skip


def ever_held(batches: list[Batch]) -> set[int]:
    """All addresses a translator ever gave out."""
    translator = Translator(BLOCK_SIZE)
    given_out: set[int] = set()
    for batch in batches:
        translator.apply(batch)
        for change in translator.resident.drain():
            given_out.update(change.addresses)
    return given_out


@cache
def true_addresses() -> frozenset[int]:
    """What the undamaged batches give."""
    return frozenset(ever_held([decoder().decode(payload) for payload in payloads()]))


def survivors(damaged: list[bytes], reads: Decodes) -> list[Batch]:
    batches = []
    for payload in damaged:
        try:
            batches.append(reads.decode(payload))
        except EngineEventError:
            continue
    return batches


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_bytes_that_are_changed_or_cut_crash_nothing(data: st.DataObject) -> None:
    payload = bytearray(data.draw(st.sampled_from(payloads())))
    for _ in range(data.draw(st.integers(0, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(payload))))
    ever_held(survivors([bytes(payload[:cut])], decoder()))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=200))
def test_noise_crashes_nothing(noise: bytes) -> None:
    trtllm = TrtllmEvents(BLOCK_SIZE, vocabulary=1000)
    for reads in (decoder(), SglangEvents(), trtllm):
        ever_held(survivors([noise, msgspec.msgpack.encode([1.0, [msgspec.Raw(noise or b"\xc0")], 0])], reads))


ANY: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.text(max_size=8), st.binary(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def shortened(field: str) -> Callable[[dict[str, Any], Any], None]:
    def damage(event: dict[str, Any], noise: Any) -> None:
        if event.get(field):
            event[field] = event[field][:-1]

    return damage


def noise_in_keys(event: dict[str, Any], noise: Any) -> None:
    """Noise that reads as a medium's key or as a salt is one."""
    a_key = isinstance(noise, list) and len(noise) > 1 and isinstance(noise[0], str) and isinstance(noise[1], int)
    if event.get("extra_keys") and not a_key and not isinstance(noise, str):
        event["extra_keys"] = [entry and [noise] for entry in event["extra_keys"]]


def without(field: str) -> Callable[[dict[str, Any], Any], None]:
    return lambda event, noise: event.pop(field, None)


def put(field: str) -> Callable[[dict[str, Any], Any], None]:
    return lambda event, noise: event.__setitem__(field, noise)


DAMAGES = {
    "a newer field": lambda event, noise: event.update({"from_0_99": noise}),
    "a hash too few": shortened("block_hashes"),
    "a token too few": shortened("token_ids"),
    "keys of a block too few": shortened("extra_keys"),
    "no keys": without("extra_keys"),
    "keys that are noise": noise_in_keys,
    "another block size": put("block_size"),
    "an unknown parent": lambda event, noise: event.update({"parent_block_hash": 12345}),
    "an unknown kind of cache": put("kv_cache_spec_kind"),
    "an unknown place": put("medium"),
    "another type": put("type"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@settings(max_examples=10, deadline=None, phases=(Phase.generate,))
@given(noise=st.lists(ANY, min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_structural_damage_gives_no_address_that_was_not_true(damage: str, noise: list[Any], seed: int) -> None:
    known = true_addresses()
    damaged: list[bytes] = []
    draw = random.Random(seed)
    for payload in payloads():
        batch = msgspec.msgpack.decode(payload)
        for event in batch[1]:
            if event["type"] == "BlockStored" and draw.random() < 0.3:
                DAMAGES[damage](event, draw.choice(noise))
        damaged.append(msgspec.msgpack.encode(batch))
    assert ever_held(survivors(damaged, decoder())) <= known


@settings(max_examples=EXAMPLES, deadline=None)
@given(ANY.filter(lambda value: not isinstance(value, bytes)), st.sampled_from(["stored", "removed", "updated"]))
def test_json_events_of_any_shape_crash_nothing(noise: Any, kind: str) -> None:
    reads = TrtllmEvents(BLOCK_SIZE, vocabulary=1000)
    data = {**(noise if isinstance(noise, dict) else {"blocks": noise, "block_hashes": noise}), "type": kind}
    try:
        payload = orjson.dumps({"at": 1.0, "event": {"event_id": 1, "data": data}})
    except TypeError:
        return
    ever_held(survivors([payload], reads))
