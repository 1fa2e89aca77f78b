"""The session id a request goes to the engine with. Pure.

Engines from vLLM 0.30 on say it in the KV events of the blocks that the request filled, so it must be known for sure:
a client may name one in a header, in the body or in ``vllm_xargs``, and all places are made to say the same. Two
tenants may use one id, so the tenant is set before it; neither can hold a slash, nor begin as an agent's own does.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote

from xxhash import xxh3_128_hexdigest

HEADER = "X-Session-ID"
_LONGEST = 256


def take_session(body: MutableMapping[str, Any], stated: str | None, tenant: str, own: str | None) -> str | None:
    """The session id the engine is told; ``body`` is changed to name no other.

    ``stated`` is the request's own, ``own`` one of the agent's for a request without; None of both: none is told.
    """
    extra = body.get("vllm_xargs")
    extra = extra if isinstance(extra, dict) else {}
    # The order in which an engine looks.
    named = [body.get("session_id"), stated, extra.get("session_id")]
    client = next((name for name in named if isinstance(name, str) and name), None)
    told = own if client is None else _scoped(client, tenant)
    _say(body, told)
    if "session_id" in extra:
        extra = dict(extra)
        _say(extra, told)
        body["vllm_xargs"] = extra
    return told


def _say(place: MutableMapping[str, Any], told: str | None) -> None:
    """Where a session id stood, ours stands; what was none is taken away."""
    if "session_id" not in place:
        return
    if told is None:
        del place["session_id"]
    else:
        place["session_id"] = told


def _scoped(client: str, tenant: str) -> str:
    safe = quote(client, safe="._:@+-", errors="surrogatepass").replace("~", "%7E")
    if len(safe) > _LONGEST:
        safe = xxh3_128_hexdigest(client.encode("utf-8", "surrogatepass"))
    return f"{tenant}/{safe}" if tenant else safe
