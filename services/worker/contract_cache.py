"""Contracts of engines that are still the same: an agent that restarts beside one need not ask it everything again.

The key holds all a contract depends on: kvroute's version, the engine's kind, version and process (its start), the
model's folder, the settings of probing. An engine that restarted is another process, so it is probed anew; one that
does not say when it started always is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from xxhash import xxh3_128_hexdigest

from schemas.worker import Contract
from services.runtime.logs import get_logger

_log = get_logger("worker.contract")


def cache_key(*parts: object) -> str:
    """A name for all of this together. ``parts`` are what JSON knows, or have a text of their own."""
    return xxh3_128_hexdigest(json.dumps(parts, sort_keys=True, default=str).encode())


def folder_state(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a model folder's small files. Raises OSError."""
    entries = [(entry.name, entry.stat()) for entry in os.scandir(folder) if entry.is_file()]
    return sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in entries)


def worth_keeping(contract: Contract) -> bool:
    """Whether nothing in it may have been a bad moment: what was laid out is proven, and identities were seen."""
    media = [one for one in (contract.image, contract.video) if one.variant]
    return contract.text.proven and all(one.proven and one.verbatim_identity is not None for one in media)


class ContractCache:
    """One file a worker. Trouble with the file costs a probing, nothing else."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def get(self, key: str) -> Contract | None:
        """The contract kept under this key."""
        try:
            found = json.loads(self._file.read_bytes())
            return Contract.model_validate(found["contract"]) if found["key"] == key else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("kept contract is unreadable", file=str(self._file), error=str(error)[:200])
            return None

    def put(self, key: str, contract: Contract) -> None:
        """Keep it instead of the one before."""
        kept = {"key": key, "contract": contract.model_dump(mode="json")}
        part = self._file.with_suffix(".part")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(kept))
            part.replace(self._file)
        except OSError as error:
            _log.warning("contract is not kept", file=str(self._file), error=str(error)[:200])

