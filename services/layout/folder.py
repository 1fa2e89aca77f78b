"""Reads the files of a checkpoint folder that say how prompts are laid out. No weights, no network."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.kv.checkpoint import CardError, resolve_snapshot

__all__ = ["CardError", "ModelFolder", "read_folder"]

MAX_FILE_BYTES = 4 << 20
"""Of a config or template file; tokenizers are larger and read elsewhere."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The configs of a checkpoint, as they stand in its files."""

    path: Path
    config: dict[str, Any]
    image_processor: dict[str, Any]
    video_processor: dict[str, Any]
    tokenizer_config: dict[str, Any]
    processor_template: str | None
    tokenizer_template: str | None
    tool_template: str | None = None
    processor: dict[str, Any] = field(default_factory=dict)

    @property
    def tokenizer_file(self) -> Path:
        """The ``tokenizers`` file."""
        return self.path / "tokenizer.json"


def read_folder(path: Path) -> ModelFolder:
    """Read a checkpoint folder, or the newest snapshot of a Hugging Face cache folder. Raises CardError."""
    path = resolve_snapshot(path)
    config = _read_json(path / "config.json")
    if config is None:
        raise CardError(f"{path} has no config.json: expected a checkpoint folder or a Hugging Face cache folder")
    if not (path / "tokenizer.json").is_file():
        raise CardError(f"{path} has no tokenizer.json: expected a tokenizer of the `tokenizers` library")
    processor = _read_json(path / "processor_config.json") or {}
    tokenizer_config = _read_json(path / "tokenizer_config.json") or {}
    default, named = _templates(tokenizer_config.get("chat_template"))
    file_template = _read_text(path / "chat_template.jinja")
    processor_template = file_template or (_read_json(path / "chat_template.json") or {}).get("chat_template")
    return ModelFolder(
        path=path,
        config=config,
        image_processor=_read_json(path / "preprocessor_config.json") or processor.get("image_processor") or {},
        video_processor=_read_json(path / "video_preprocessor_config.json") or processor.get("video_processor") or {},
        tokenizer_config=tokenizer_config,
        processor_template=processor_template,
        tokenizer_template=file_template or default or named.get("default"),
        processor=processor,
        tool_template=_read_text(path / "additional_chat_templates" / "tool_use.jinja")
        or (None if file_template else named.get("tool_use")),
    )


def _templates(value: Any) -> tuple[str | None, dict[str, str]]:
    """A tokenizer config's chat template: one text, or a list of named ones."""
    if isinstance(value, str):
        return value, {}
    if isinstance(value, list):
        named = {entry["name"]: entry["template"] for entry in value if isinstance(entry, dict) and "name" in entry}
        return None, named
    return None, {}


def _read_text(path: Path) -> str | None:
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_FILE_BYTES:
        raise CardError(f"{path} has {path.stat().st_size} bytes, expected at most {MAX_FILE_BYTES}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CardError(f"{path} is not UTF-8: {error}") from None


def _read_json(path: Path) -> dict[str, Any] | None:
    text = _read_text(path)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CardError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CardError(f"{path} holds a {type(value).__name__}, expected an object")
    return value
