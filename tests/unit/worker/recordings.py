"""The recorded vLLM streams of tests/golden/vllm_events, case by case: what was asked and what the engine announced."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from services.kv.address import Span, addresses
from services.kv.identity import parse_engine_uuid

FOLDER = Path(__file__).parents[2] / "golden" / "vllm_events"
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Case:
    """One recorded request. ``computed`` are the tokens whose KV the engine computed: the last one never is cached."""

    name: str
    prompt: list[int] | None
    generated: list[int]
    cached_tokens: int | None
    cache_salt: str | None
    spans: tuple[Span, ...]
    payloads: list[bytes]
    batches: list[dict[str, Any]]

    @property
    def prompt_addresses(self) -> list[int]:
        return addresses(self.prompt or [], BLOCK_SIZE, self.spans, cache_salt=self.cache_salt)

    @property
    def all_addresses(self) -> list[int]:
        """Of the prompt and of the decoded blocks; the last generated token is never computed."""
        computed = (self.prompt or []) + self.generated[:-1]
        return addresses(computed, BLOCK_SIZE, self.spans, cache_salt=self.cache_salt)


@cache
def load(name: str) -> tuple[Case, ...]:
    recorded = json.loads((FOLDER / f"{name}.json").read_text())
    identifiers: dict[str, str] = {}
    return tuple(_case(raw, identifiers) for raw in recorded["cases"])


def wire_vectors() -> dict[str, Any]:
    return json.loads((FOLDER / "wire_vectors.json").read_text())


def _case(raw: dict[str, Any], identifiers: dict[str, str]) -> Case:
    request = raw.get("request") or {}
    response = raw.get("response") if isinstance(raw.get("response"), dict) else {}
    prompt = raw.get("prompt_token_ids") or response.get("prompt_token_ids")
    events = [event for batch in raw["kv_batches"] for event in batch["decoded"][1] if event["type"] == "BlockStored"]
    usage = response.get("usage") or {}
    return Case(
        name=raw["case"],
        prompt=prompt,
        generated=raw.get("gen_token_ids") or [0],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        cache_salt=request.get("cache_salt"),
        spans=_spans(raw, request, prompt, events, identifiers) if prompt else (),
        payloads=[bytes.fromhex(batch["payload_hex"]) for batch in raw["kv_batches"]],
        batches=raw["kv_batches"],
    )


IMAGE_PAD, VIDEO_PAD, VISION_START, VISION_END = 151655, 151656, 151652, 151653


def _spans(
    raw: dict[str, Any],
    request: dict[str, Any],
    prompt: list[int],
    events: list[dict[str, Any]],
    identifiers: dict[str, str],
) -> tuple[Span, ...]:
    """The router's side: placeholder ranges read from the prompt, identities from what the request said.

    A medium without a uuid is known by the engine's own hash, which only its events tell: the first announcement of
    a medium teaches its name, later cases with the same medium must come out right without it.
    """
    features = request.get("features")
    if features:
        ranges = features["mm_placeholders"]["image"]
        names = features["mm_hashes"]["image"]
        return tuple(
            Span(at["offset"], at["length"], parse_engine_uuid(name))
            for at, name in zip(ranges, names, strict=True)
        )
    new = iter(_announced(events, set(identifiers.values())))
    media = _media(raw, request)
    spans = []
    for offset, length in placeholder_ranges(prompt):
        key, uuid = media.pop(0)
        if uuid is None and key not in identifiers:
            identifiers[key] = next(new)
        spans.append(Span(offset, length, parse_engine_uuid(uuid or identifiers[key])))
    assert not media
    return tuple(spans)


def placeholder_ranges(prompt: list[int]) -> list[tuple[int, int]]:
    """Runs of image pads; a video's whole range (one video alone), from its first inner token to its last."""
    if VIDEO_PAD in prompt:
        start = prompt.index(VISION_START) + 1
        return [(start, len(prompt) - 1 - prompt[::-1].index(VISION_END) - start)]
    ranges: list[tuple[int, int]] = []
    for index, token in enumerate(prompt):
        if token == IMAGE_PAD:
            if ranges and sum(ranges[-1]) == index:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
            else:
                ranges.append((index, 1))
    return ranges


def _media(raw: dict[str, Any], request: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Per medium: what it is, and the uuid under which the engine knows it (kwargs make the engine hash it anew)."""
    kwargs = json.dumps(request.get("mm_processor_kwargs"))
    found: list[tuple[str, str | None]] = []
    for message in request.get("messages", []):
        for part in message["content"] if isinstance(message["content"], list) else []:
            if part["type"] not in ("image_url", "video_url"):
                continue
            url = (part[part["type"]] or {}).get("url", "")
            content = _FILES.get(url, url.partition("base64,")[2])
            uuid = part.get("uuid")
            found.append((f"{content} {uuid} {kwargs}", uuid if kwargs == "null" else None))
    return found or ([("the image", None)] if raw["case"].startswith("img_") else [])


_FILES = {
    "file://media/A_224x168.png": json.loads((FOLDER / "q25vl_bs16.json").read_text())["media"]["A_224x168.png"]["b64"]
}


def _announced(events: list[dict[str, Any]], known: set[str]) -> list[str]:
    names = [key[0] for event in events for keys in event["extra_keys"] or [] for key in keys or []
             if isinstance(key, list)]  # fmt: skip
    return [name for name in dict.fromkeys(names) if name not in known]
