"""Whatever a message takes from a record it can write into the next: a stage that can't pass on what it took fails."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.types import Message
from tests.unit.schemas.test_golden_messages import FILES, message_type

ODD = ["9" * 40, "-" + "9" * 40, 2**64 - 1, -(2**63), "7", 1e300, True, [], {}, "\0", ""]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands, all levels down."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield (*at, step)
        yield from places(inner, (*at, step))


def put(value: Any, at: tuple[Any, ...], odd: Any) -> Any:
    changed = copy.deepcopy(value)
    target = changed
    for step in at[:-1]:
        target = target[step]
    target[at[-1]] = odd
    return changed


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_odd_values_in_every_place(path: Path) -> None:
    kind: type[Message] = message_type(path)
    value = json.loads(path.read_bytes())
    for at in places(value):
        for odd in ODD:
            try:
                message = kind.from_bytes(json.dumps(put(value, at, odd)).encode())
            except ValueError:
                continue
            assert kind.from_bytes(message.to_bytes()) == message, (at, odd)
