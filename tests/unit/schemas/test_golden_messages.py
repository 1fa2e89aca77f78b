"""Records written by every released version must stay readable: the files in golden/messages never change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from schemas.asyncapi import messages
from schemas.generate import json_schema
from schemas.types import Message, pack_u64
from services.kv.address import addresses

GOLDEN = Path(__file__).parents[2] / "golden" / "messages"
FILES = sorted(GOLDEN.glob("v*/*.json"))
TYPES = {message.SCHEMA: message for message in messages()}


def message_type(path: Path) -> type[Message]:
    """``kv-events.v1.snapshot.json`` is a kv-events.v1."""
    return TYPES[".".join(path.name.split(".")[:2])]


def with_unknown_fields(value: Any) -> Any:
    """The same data as a later version might write it: a new field in every object."""
    if isinstance(value, dict):
        return {name: with_unknown_fields(part) for name, part in value.items()} | {"from_the_future": {"x": [1]}}
    if isinstance(value, list):
        return [with_unknown_fields(part) for part in value]
    return value


def missing(expected: Any, found: Any, at: str = "$") -> list[str]:
    """Where ``found`` lacks or changes something of ``expected``; what it has besides is no matter."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            difference
            for name, part in expected.items()
            for difference in (missing(part, found[name], f"{at}.{name}") if name in found else [f"{at}.{name}"])
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [difference for i, (part, other) in pairs for difference in missing(part, other, f"{at}[{i}]")]
    return [] if expected == found else [at]


def test_every_message_type_has_a_golden_file() -> None:
    assert {message_type(path).SCHEMA for path in FILES} == set(TYPES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
class TestGolden:
    def test_decodes_and_encodes_to_the_same_record(self, path: Path) -> None:
        raw = path.read_bytes()
        message = message_type(path).from_bytes(raw)
        assert missing(json.loads(raw), json.loads(message.to_bytes())) == []
        assert message_type(path).from_bytes(message.to_bytes()) == message

    def test_is_what_the_schema_file_describes(self, path: Path) -> None:
        schema = json_schema(message_type(path))
        jsonschema.Draft202012Validator(schema).validate(json.loads(path.read_bytes()))

    def test_unknown_fields_are_ignored(self, path: Path) -> None:
        raw = json.loads(path.read_bytes())
        later = raw | {"from_the_future": {"x": [1]}}
        for name, part in raw.items():
            # Maps from names to values, and the caller's own JSON, take any key: there it is no unknown field.
            if name not in {"body", "route", "resident", "timings_ms", "parameters", "addresses", "candidates"}:
                later[name] = with_unknown_fields(part)
        assert message_type(path).from_bytes(json.dumps(later).encode()) == message_type(path).from_bytes(
            path.read_bytes()
        )


def test_hashes_on_the_wire_are_little_endian_base64() -> None:
    raw = json.loads((GOLDEN / "v1" / "kv-events.v1.snapshot.json").read_bytes())
    assert raw["snapshot"]["addresses"] == "iG7upXH8BupMKd03WoMBrRq9zCts5VUNiGaNBKgCVUQ="
    decoded = TYPES["kv-events.v1"].from_bytes(json.dumps(raw).encode())
    assert decoded.model_dump(mode="python")["snapshot"]["addresses"] == pack_u64(addresses(range(1, 65), 16))


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "unexpected end|empty"),
        (b"null", "valid dictionary|Input should be"),
        (b"[]", "Input should be"),
        (b'{"body": "text"}', "body"),
        (b'{"body": {}, "reply_to": "kvroute.decisions.v1"}', "reply_to"),
        (b'{"body": {}, "request_id": "a/b"}', "request_id"),
        (b'{"body": {}, "tenant": "a/b"}', "tenant"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(raw: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        TYPES["request.v1"].from_bytes(raw)


@pytest.mark.parametrize("packed", ["not base64!", "AAAA", "AAAAAAAAAAA"])
def test_a_wrong_address_list_is_refused(packed: str) -> None:
    raw = json.loads((GOLDEN / "v1" / "kv-events.v1.json").read_bytes())
    raw["changes"][0]["addresses"] = packed
    with pytest.raises(ValueError, match="base64"):
        TYPES["kv-events.v1"].from_bytes(json.dumps(raw).encode())
