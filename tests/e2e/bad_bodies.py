"""What nobody should send, and what is said to it."""

from __future__ import annotations

from typing import Any

import orjson

from tests.e2e.asking import body
from tests.e2e.fleet import MODEL
from tests.e2e.site import bad_files
from tests.unit.media.images import data_uri


def chat(**changes: Any) -> dict[str, Any]:
    """A chat body with fields set to something else."""
    return body(MODEL.name, "Hello") | changes


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


BODIES: dict[str, tuple[bytes, int, str]] = {
    "not JSON": (b'{"model": ', 400, "not_json"),
    "null": (b"null", 400, "invalid_request"),
    "empty": (b"", 400, "not_json"),
    "a list": (b"[]", 400, "invalid_request"),
    "messages is text": (orjson.dumps(chat(messages="hello")), 400, "invalid_request"),
    "a message is a number": (orjson.dumps(chat(messages=[7])), 400, "invalid_request"),
    "the role is a list": (orjson.dumps(chat(messages=[{"role": [], "content": "x"}])), 400, "invalid_request"),
    "the content is a number": (orjson.dumps(chat(messages=[{"role": "user", "content": 7}])), 400, "invalid_request"),
    "a part is null": (orjson.dumps(chat(messages=[{"role": "user", "content": [None]}])), 400, "invalid_request"),
    "the model is a number": (orjson.dumps(chat(model=7)), 400, "invalid_request"),
    "no model": (orjson.dumps({"messages": []}), 400, "invalid_request"),
    "stream is text": (orjson.dumps(chat(stream="yes")), 400, "invalid_request"),
    "max_tokens is text": (orjson.dumps(chat(max_tokens="many")), 400, "engine_400"),
    "tools is a number": (orjson.dumps(chat(tools=5)), 400, "engine_400"),
    "unknown model": (orjson.dumps(chat(model="nobody/has-it")), 404, "model_not_found"),
    "10,000 nested arrays": (nested(10_000), 400, "not_json"),
    "10,000 nested arrays as content": (
        b'{"model":"%b","messages":[{"role":"user","content":%b}]}' % (MODEL.name.encode(), nested(10_000)),
        400,
        "not_json",
    ),
    "600 nested arrays": (
        b'{"model":"%b","messages":[{"role":"user","content":"x"}],"more":%b}' % (MODEL.name.encode(), nested(600)),
        400,
        "too_deep",
    ),
    "NUL": (orjson.dumps(chat(messages=[{"role": "user", "content": "a\0b"}])), 200, ""),
    "lone surrogates": (
        b'{"model":"%b","messages":[{"role":"user","content":"\\ud800"}]}' % MODEL.name.encode(),
        400,
        "not_json",
    ),
    "5 million empty lists": (b'{"more":[' + b"[]," * 5_000_000 + b"0]}", 400, "too_complex"),
    "20 MB": (b" " * (20 << 20), 413, "body_too_large"),
}

BAD_MEDIA: dict[str, tuple[str, str]] = {
    "broken base64": ("data:image/png;base64,iVBOR!!!not-base64", "decode_failed"),
    "base64 of nothing": ("data:image/png;base64,", "decode_failed"),
    "no base64 at all": ("data:image/png,hello", "decode_failed"),
    "truncated JPEG": (data_uri(bad_files()["truncated.jpg"], "image/jpeg"), "decode_failed"),
    "HTML page": (data_uri(bad_files()["page.jpg"], "image/jpeg"), "decode_failed"),
    "20,000 x 20,000 PNG": (data_uri(bad_files()["huge.png"]), "too_large"),
    "truncated JPEG by URL": ("SITE/truncated.jpg", "decode_failed"),
    "0 bytes by URL": ("SITE/empty.jpg", "decode_failed"),
    "HTML page by URL": ("SITE/page.jpg", "decode_failed"),
    "20,000 x 20,000 PNG by URL": ("SITE/huge.png", "too_large"),
    "404": ("SITE/nothing.jpg", "fetch_failed"),
    "redirected for ever": ("SITE/loop", "fetch_failed"),
    "never ends": ("SITE/stuck.jpg", "fetch_failed"),
    "nobody listens": ("http://127.0.0.1:2/x.jpg", "fetch_failed"),
    "no such host": ("http://nobody.invalid/x.jpg", "fetch_failed"),
}


ENGINE_SAYS = {
    "no base64 at all": (501, "engine_501"),
    "404": (422, "engine_422"),
    # vLLM's 500 may be the engine's trouble or the URL's: another worker is tried, and there is none.
    "redirected for ever": (502, "engine_500"),
    "never ends": (502, "engine_500"),
    "nobody listens": (502, "engine_500"),
    "no such host": (502, "engine_500"),
}

RECORDS: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", "not_json"),
    "null": (b"null", "not_an_object"),
    "a number": (b"5", "not_an_object"),
    "no body": (b"{}", "invalid_message"),
    "body is text": (b'{"body": "hello"}', "invalid_message"),
    "a request id with a slash": (b'{"body": {}, "request_id": "a/b"}', "invalid_message"),
    "10,000 nested arrays": (nested(10_000), "not_json"),
    "10,000 nested arrays as body": (b'{"body": {"x": %b}}' % nested(10_000), "not_json"),
    "300,000 empty lists": (b'{"body":{"more":[' + b"[]," * 300_000 + b"0]}}", "too_complex"),
    "not UTF-8": (b'{"body": {"model": "\xff"}}', "not_json"),
    "a deadline that is no number": (b'{"body": {}, "deadline_ms": 1e400}', "not_json"),
    "a priority of 40 digits": (b'{"body": {}, "priority": "%b"}' % (b"9" * 40), "invalid_message"),
    "a claim of the user's": (b'{"body_claim": {"uri": "file:///etc/passwd", "size": 1}}', "invalid_message"),
}

BODIES_BY_KAFKA: dict[str, tuple[dict[str, Any], int, str]] = {
    "empty body": ({}, 400, "invalid_request"),
    "unknown model": (chat(model="nobody/has-it"), 404, "model_not_found"),
    "messages is text": (chat(messages="hello"), 400, "invalid_request"),
    "the model is a list": (chat(model=[]), 400, "invalid_request"),
}

GARBAGE: tuple[bytes | None, ...] = (
    b"{", b"null", b"5", b"{}", b"[]", b"\xff", b"", nested(10_000), b'{"worker_id": "../x", "epoch": -1}',
    b'{"request_id": "from-the-future", "schema": "request.v99"}',
)  # fmt: skip
"""No message of any topic."""
