"""Asking a gateway many things at once, and what every answer was."""

from __future__ import annotations

import asyncio
import base64
import io
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
from PIL import Image


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer: ``finals`` is how many final answers came (1 is the promise)."""

    request_id: str
    status: int
    finals: int
    worker: str | None
    cached_tokens: int | None
    text: str


def picture(seed: int, height: int = 168, width: int = 224) -> str:
    """A data: URI of a small PNG; the same seed gives the same bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def body(model: str, text: str, images: tuple[str, ...] = (), *, system: str = "", **extra: Any) -> dict[str, Any]:
    """An OpenAI chat body."""
    content: Any = text
    if images:
        content = [{"type": "image_url", "image_url": {"url": url}} for url in images]
        content.append({"type": "text", "text": text})
    messages = [{"role": "system", "content": system}] if system else []
    return {"model": model, "messages": [*messages, {"role": "user", "content": content}], "max_tokens": 8, **extra}


async def ask(
    http: aiohttp.ClientSession, url: str, request_id: str, payload: dict[str, Any], **headers: str
) -> Answer:
    """Ask once. A stream's final answers are its [DONE] or error events."""
    async with http.post(
        f"{url}/v1/chat/completions", json=payload, headers={"X-Request-Id": request_id, **headers}
    ) as response:
        text = await response.text()
        worker = response.headers.get("x-kvroute-worker")
        if payload.get("stream") and response.status == 200:
            finals = text.count("data: [DONE]") + text.count('data: {"error"')
            return Answer(request_id, 200, finals, worker, None, text)
        cached = None
        if response.status == 200:
            usage = (await response.json()).get("usage") or {}
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return Answer(request_id, response.status, 1, worker, cached, text)


async def ask_all(
    http: aiohttp.ClientSession, url: str, requests: list[tuple[str, dict[str, Any]]], *, together: int
) -> list[Answer]:
    """Ask all, ``together`` at once."""
    bound = asyncio.Semaphore(together)

    async def one(request_id: str, payload: dict[str, Any]) -> Answer:
        async with bound:
            return await ask(http, url, request_id, payload)

    return list(await asyncio.gather(*(one(*request) for request in requests)))
