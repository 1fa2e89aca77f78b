"""The AsyncAPI 3 document: every topic, who writes and reads it, and what its records look like."""

from __future__ import annotations

import re
from typing import Any

from pydantic.json_schema import models_json_schema

from schemas.types import Message
from services.runtime.topics import DEAD_LETTERS, PATTERNS, TOPICS, Topic

VERSION = "1.0.0"
"""Version of the messages as a whole: major changes with a topic's ``.v1``."""

RECORD_HEADERS = {
    "schema": "Type and version of the value, such as request.v1.",
    "content-type": "application/json.",
    "traceparent": "W3C trace context of the request.",
}
DEAD_LETTER_HEADERS = {
    "dlq-topic": "Topic the record was read from.",
    "dlq-partition": "Its partition.",
    "dlq-offset": "Its offset.",
    "dlq-timestamp-ms": "Its timestamp, wall milliseconds.",
    "dlq-stage": "Stage that gave up on it.",
    "dlq-code": "What kind of failure; a metric label.",
    "dlq-message": "The failure for people; no payload, no URL query.",
}
PLACEHOLDERS = {
    "kvroute.work.{}.v1": ("workerId", "A worker_id: [a-z0-9-]{1,64}."),
    "kvroute.responses.{}.v1": ("instance", "A gateway instance, or any name a user chooses for own answers."),
}
_NOT_IN_BINDING = {"segment.ms"}


def messages() -> list[type[Message]]:
    """The message types of all topics, in the order of the topic table."""
    return [topic.message for topic in TOPICS + PATTERNS if topic.message is not None]


def document() -> dict[str, Any]:
    """The whole document as plain data."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "kvroute",
            "version": VERSION,
            "description": "Chat requests, decisions, request lifecycles and KV-cache changes as Kafka records. "
            "Unknown fields are ignored by every reader.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "kafka": {
                "host": "{bootstrap}",
                "protocol": "kafka",
                "description": "What KVROUTE_KAFKA_BOOTSTRAP names.",
                "variables": {"bootstrap": {"default": "127.0.0.1:9092"}},
            }
        },
        "channels": {channel_id(topic): _channel(topic) for topic in TOPICS + PATTERNS},
        "operations": dict(_operation(topic, action) for topic in TOPICS + PATTERNS for action in ("send", "receive")),
        "components": {
            "messages": {message_id(topic): _message(topic) for topic in TOPICS + PATTERNS},
            "schemas": _schemas(),
        },
    }


def channel_id(topic: Topic) -> str:
    """``kvroute.kv-events.v1`` is ``kvEvents``."""
    name = re.sub(r"^kvroute\.|\.v\d+$|\.\{\}", "", topic.name)
    return re.sub(r"-(\w)", lambda match: match[1].upper(), name)


def message_id(topic: Topic) -> str:
    """Name of the record type of a topic."""
    return topic.message.__name__ if topic.message is not None else "DeadLetter"


def _channel(topic: Topic) -> dict[str, Any]:
    channel: dict[str, Any] = {
        "address": topic.name,
        "title": topic.name,
        "description": f"{topic.purpose[:1].upper()}{topic.purpose[1:]}. Key: {topic.key}. "
        f"Written by {topic.written_by}; read by {topic.read_by}.",
        "messages": {message_id(topic): {"$ref": f"#/components/messages/{message_id(topic)}"}},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": _configuration(topic),
                "bindingVersion": "0.5.0",
            }
        },
    }
    if topic.name in PLACEHOLDERS:
        name, description = PLACEHOLDERS[topic.name]
        channel["address"] = topic.name.replace("{}", f"{{{name}}}")
        channel["parameters"] = {name: {"description": description}}
        del channel["bindings"]["kafka"]["topic"]
    return channel


def _configuration(topic: Topic) -> dict[str, Any]:
    configuration: dict[str, Any] = {}
    for name, value in topic.config.items():
        if name == "cleanup.policy":
            configuration[name] = value.split(",")
        elif name not in _NOT_IN_BINDING:
            configuration[name] = int(value)
    return configuration


def _operation(topic: Topic, action: str) -> tuple[str, dict[str, Any]]:
    name = channel_id(topic)
    who = topic.written_by if action == "send" else topic.read_by
    return f"{action}{name[:1].upper()}{name[1:]}", {
        "action": action,
        "channel": {"$ref": f"#/channels/{name}"},
        "summary": f"{'Writers' if action == 'send' else 'Readers'}: {who}.",
        "messages": [{"$ref": f"#/channels/{name}/messages/{message_id(topic)}"}],
    }


def _message(topic: Topic) -> dict[str, Any]:
    headers = DEAD_LETTER_HEADERS if topic is DEAD_LETTERS else RECORD_HEADERS
    message: dict[str, Any] = {
        "name": topic.message.SCHEMA if topic.message is not None else "dead-letter.v1",
        "title": message_id(topic),
        "summary": _summary(topic),
        "headers": {
            "type": "object",
            "properties": {name: {"type": "string", "description": text} for name, text in headers.items()},
        },
        "bindings": {
            "kafka": {"key": {"type": "string", "description": topic.key}, "bindingVersion": "0.5.0"},
        },
    }
    if topic.message is not None:
        message["contentType"] = "application/json"
        message["payload"] = {"$ref": f"#/components/schemas/{topic.message.__name__}"}
    else:
        message["contentType"] = "application/octet-stream"
        message["payload"] = {"description": "The original value, byte for byte; the key is the original key."}
    return message


def _summary(topic: Topic) -> str:
    if topic.message is None:
        return "A record that could not be handled."
    return (topic.message.__doc__ or "").strip().splitlines()[0]


def _schemas() -> dict[str, Any]:
    inputs = [(message, "validation") for message in messages()]
    _, schema = models_json_schema(inputs, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    definitions: dict[str, Any] = schema["$defs"]
    return definitions
