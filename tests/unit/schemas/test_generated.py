"""The schema files and the AsyncAPI document are what the code says, and are well formed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from schemas.asyncapi import document, messages
from schemas.generate import DIALECT, generated, json_schema, main, stale
from schemas.types import Message
from services.runtime.topics import PATTERNS, TOPICS


def references(value: Any) -> Iterator[str]:
    """Every ``$ref`` in a document."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def resolve(root: Any, reference: str) -> Any:
    """What a local JSON pointer names."""
    assert reference.startswith("#/"), f"{reference} leads out of the document"
    for step in reference[2:].split("/"):
        root = root[step]
    return root


def test_files_are_up_to_date() -> None:
    assert stale() == [], "run `make schemas`"
    assert main(["--check"]) == 0


def test_generating_twice_gives_the_same_bytes() -> None:
    assert generated() == generated()


@pytest.mark.parametrize("message", messages(), ids=lambda message: message.SCHEMA)
def test_schema_is_valid_and_self_contained(message: type[Message]) -> None:
    schema = json_schema(message)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DIALECT
    assert schema["$id"].endswith(message.SCHEMA)
    for reference in references(schema):
        assert resolve(schema, reference)


def test_schemas_let_later_versions_add_fields() -> None:
    for message in messages():
        text = json.dumps(json_schema(message))
        assert '"additionalProperties": false' not in text, message.SCHEMA


class TestAsyncApi:
    def test_has_a_channel_for_every_topic(self) -> None:
        addresses = [channel["title"] for channel in document()["channels"].values()]
        assert addresses == [topic.name for topic in TOPICS + PATTERNS]

    def test_every_reference_resolves(self) -> None:
        root = document()
        found = list(references(root))
        assert len(found) > 100
        for reference in found:
            assert resolve(root, reference)

    def test_operations_speak_of_messages_of_their_channel(self) -> None:
        root = document()
        for operation in root["operations"].values():
            assert operation["action"] in {"send", "receive"}
            channel = resolve(root, operation["channel"]["$ref"])
            for message in operation["messages"]:
                assert resolve(root, message["$ref"]) in channel["messages"].values()

    def test_addresses_with_parameters_name_them(self) -> None:
        for channel in document()["channels"].values():
            for name in channel.get("parameters", {}):
                assert f"{{{name}}}" in channel["address"]
            assert "{}" not in channel["address"]

    def test_every_component_schema_is_a_json_schema(self) -> None:
        for schema in document()["components"]["schemas"].values():
            jsonschema.Draft202012Validator.check_schema(schema)

    def test_kafka_binding_tells_partitions_and_retention(self) -> None:
        binding = document()["channels"]["workers"]["bindings"]["kafka"]
        assert binding["partitions"] == 1
        assert binding["topicConfiguration"] == {"cleanup.policy": ["compact"]}
        requests = document()["channels"]["requests"]["bindings"]["kafka"]
        assert requests["topicConfiguration"]["retention.ms"] == 24 * 3600 * 1000

    def test_dead_letters_are_described_by_their_headers(self) -> None:
        headers = document()["components"]["messages"]["DeadLetter"]["headers"]["properties"]
        assert {"dlq-topic", "dlq-partition", "dlq-offset", "dlq-stage", "dlq-code", "dlq-message"} <= set(headers)
