"""Sending what must not be lost while the broker is away for a moment."""

from __future__ import annotations

import asyncio

from schemas.decision import Position
from schemas.types import Message
from services.runtime.bus import Sender
from services.runtime.errors import Transient

SECONDS = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


async def send_patiently(
    sender: Sender, topic: str, message: Message, *, key: str, seconds: float = SECONDS
) -> Position:
    """Send, and try again for a while. Raises Transient when the broker stays away, BadRecord at once."""
    waited, pause = 0.0, _FIRST_PAUSE
    while True:
        try:
            return await sender.send(topic, message, key=key)
        except Transient:
            if waited >= seconds:
                raise
        await asyncio.sleep(pause)
        waited += pause
        pause = min(pause * 2, _LONGEST_PAUSE)
