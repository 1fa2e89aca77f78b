"""Requests as a chat service sends them, long shared beginnings and short endings; and a client that times them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import aiohttp

_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand"
    " part place case week company system program question work government number night point home water room mother"
    " area money story fact month lot right study book eye job word business issue side kind head house service friend"
)
WORDS = tuple(_TEXT.split())
"""Common words: each is one token of a byte-pair vocabulary, with the space before it."""

CONVERSATIONS = 16
SHARED = 0.75
"""Share of a prompt that other prompts of the same conversation begin with too."""


def prompts(tokens: int, count: int, seed: int) -> Iterator[list[dict[str, str]]]:
    """``count`` chats of about ``tokens`` tokens: one of 16 long beginnings, then words of their own."""
    source = random.Random(seed)
    shared = int(tokens * SHARED)
    beginnings = [_text(random.Random(f"{tokens}/{number}"), shared) for number in range(CONVERSATIONS)]
    for _ in range(count):
        own = _text(source, tokens - shared)
        yield [{"role": "system", "content": source.choice(beginnings)}, {"role": "user", "content": own}]


def _text(source: random.Random, words: int) -> str:
    return " ".join(source.choices(WORDS, k=words))


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's time in seconds and what the engine said of it."""

    seconds: float
    prompt_tokens: int
    cached_tokens: int


async def drive(
    url: str, model: str, chats: Iterable[list[dict[str, str]]], concurrency: int
) -> tuple[list[Answer], float]:
    """Send every chat, ``concurrency`` at once, asking for one token. Returns the answers and the seconds it took.

    Raises RuntimeError for the first request that is not answered with 200.
    """
    waiting = iter(chats)
    answers: list[Answer] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def client() -> None:
            for messages in waiting:
                body = {"model": model, "messages": messages, "max_tokens": 1}
                start = time.perf_counter()
                async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                    answer = await response.json(content_type=None)
                    if response.status != 200:
                        raise RuntimeError(f"{url} answered {response.status}: {answer}")
                usage = answer["usage"]
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                answers.append(Answer(time.perf_counter() - start, usage["prompt_tokens"], cached))

        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        return answers, time.perf_counter() - start
