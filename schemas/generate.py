"""Writes ``schemas/json/*.json`` and ``schemas/asyncapi.json`` from the messages and the topic table.

``python -m schemas.generate`` writes them, ``--check`` says which differ and fails: generated files are never edited.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from schemas.asyncapi import document, messages
from schemas.types import Message

HERE = Path(__file__).parent
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(message: type[Message]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one message type, self-contained, with an ``$id`` that names type and version."""
    schema = message.model_json_schema(mode="validation")
    return {"$schema": DIALECT, "$id": f"urn:kvroute:schema:{message.SCHEMA}"} | schema


def generated() -> dict[Path, str]:
    """Every generated file's path and content."""
    files = {HERE / "json" / f"{message.SCHEMA}.json": json_schema(message) for message in messages()}
    files[HERE / "asyncapi.json"] = document()
    return {path: json.dumps(value, indent=2, ensure_ascii=False) + "\n" for path, value in files.items()}


def stale() -> list[Path]:
    """Generated files that are missing, differ from the code, or belong to no message any more."""
    wanted = generated()
    differing = [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]
    return differing + [path for path in sorted((HERE / "json").glob("*.json")) if path not in wanted]


def main(arguments: list[str]) -> int:
    """Write or check the files; the exit code."""
    if "--check" in arguments:
        for path in stale():
            print(f"{path.relative_to(HERE.parent)} differs from the code: run `make schemas`", file=sys.stderr)
        return 1 if stale() else 0
    for path in stale():
        path.unlink(missing_ok=True)
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        if not path.is_file():
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(HERE.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
