"""API keys and the tenants they stand for. Pure but for the file they may come from."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from pathlib import Path

from services.runtime.errors import ConfigError, Refused

_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SETTING = "KVROUTE_GATEWAY_API_KEYS"


class ApiKeys:
    """Finds the tenant of a key without telling by its time how much of the key was right.

    Only digests are kept; every known key is compared on every look-up.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._tenants = [(_digest(key), tenant) for key, tenant in pairs]

    @classmethod
    def parse(cls, setting: str | None) -> ApiKeys | None:
        """From ``key=tenant`` pairs, comma separated, or ``@FILE`` with one pair a line. None: no keys are asked for.

        Raises ConfigError. The message names no key.
        """
        if setting is None or not setting.strip():
            return None
        entries = _read(Path(setting[1:])) if setting.startswith("@") else setting.split(",")
        pairs: dict[str, str] = {}
        for number, entry in enumerate((entry.strip() for entry in entries), 1):
            if not entry or entry.startswith("#"):
                continue
            key, mark, tenant = entry.rpartition("=")
            if not mark or not key or not _TENANT.fullmatch(tenant):
                raise ConfigError(
                    f"{_SETTING}: entry {number} is not key=tenant with a tenant of 1 to 64 letters, digits, ., _ or -"
                )
            if key in pairs:
                raise ConfigError(f"{_SETTING}: entry {number} repeats a key")
            pairs[key] = tenant
        if not pairs:
            raise ConfigError(f"{_SETTING} is set and names no key, expected key=tenant pairs or @FILE")
        return cls(pairs.items())

    def tenant(self, authorization: str | None) -> str:
        """The tenant of an ``Authorization: Bearer`` header. Raises Refused (401)."""
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Refused(401, "no API key: expected the header Authorization: Bearer <key>", code="invalid_api_key")
        digest = _digest(key.strip())
        found = None
        for known, tenant in self._tenants:
            if hmac.compare_digest(known, digest):
                found = tenant
        if found is None:
            raise Refused(401, "the API key is not known here", code="invalid_api_key")
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _read(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"{_SETTING} names the file {path}, which can't be read: {error.strerror}") from None
