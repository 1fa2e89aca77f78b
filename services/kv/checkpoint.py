"""Where a checkpoint lies, and what kind of model it says it is. Reads small files only; no weights, no network."""

from __future__ import annotations

import json
from pathlib import Path

CONFIG_LIMIT = 4 << 20


class CardError(ValueError):
    """A model folder can't be used. The message names the file, what was found and what was expected."""


def resolve_snapshot(path: Path) -> Path:
    """The folder itself, or the snapshot a Hugging Face cache folder (``models--org--name``) points to.

    The snapshot is that of ``refs/main``, else the only one there is. Raises CardError otherwise.
    """
    if not path.is_dir():
        raise CardError(f"{path} is no folder: expected a checkpoint folder")
    snapshots = path / "snapshots"
    if (path / "config.json").is_file() or not snapshots.is_dir():
        return path
    reference = path / "refs" / "main"
    if reference.is_file():
        named = snapshots / reference.read_text().strip()
        if named.is_dir():
            return named
    found = sorted(entry for entry in snapshots.iterdir() if entry.is_dir())
    if len(found) != 1:
        raise CardError(f"{snapshots} holds {len(found)} snapshots and refs/main names none: name one of them instead")
    return found[0]


def model_type_of(path: Path) -> str:
    """``model_type`` of a checkpoint's config.json. Raises CardError, OSError."""
    file = resolve_snapshot(path) / "config.json"
    with file.open("rb") as opened:
        raw = opened.read(CONFIG_LIMIT + 1)
    try:
        if len(raw) > CONFIG_LIMIT:
            raise ValueError(f"more than {CONFIG_LIMIT} bytes")
        config = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CardError(f"{file} can't be read: {error}") from None
    found = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(found, str):
        raise CardError(f"{file} names no model_type")
    return found
