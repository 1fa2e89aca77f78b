"""Identity by URL: as it is, without parameters that expire, or mixed with what the server says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack
from urllib.parse import unquote_plus, urlsplit

from xxhash import xxh3_64_intdigest

from services.kv.identity import length_prefixed, url_identity
from services.media.fetch import Validators
from services.runtime.errors import ConfigError


class DroppedParams:
    """``KVROUTE_IDENTITY_DROP_PARAMS``: query parameters, by host, that say nothing about the medium."""

    def __init__(self, setting: Mapping[str, str]) -> None:
        """Raises ConfigError for a host without parameters."""
        self._by_host: dict[str, frozenset[str]] = {}
        for host, names in setting.items():
            listed = frozenset(name for name in names.split("+") if name)
            if not listed:
                raise ConfigError(
                    f"KVROUTE_IDENTITY_DROP_PARAMS names the host {host} without parameters, expected host=param+param"
                )
            self._by_host[host.lower()] = listed

    def identity(self, url: str, tenant: str) -> int:
        """URL identity; listed parameters are left out only for a tenant, so that nobody meets another's media."""
        return url_identity(self._without(url) if tenant and self._by_host else url)

    def key(self, url: str, tenant: str) -> tuple[str, str]:
        """What a URL is remembered by: without the listed parameters it is remembered for its tenant alone."""
        without = self._without(url) if tenant and self._by_host else url
        return (without, "") if without == url else (without, tenant)

    def _without(self, url: str) -> str:
        split = urlsplit(url)
        dropped = self._by_host.get((split.hostname or "").removesuffix("."))
        if not dropped or not split.query:
            return url
        head, _, rest = url.partition("?")
        query, mark, fragment = rest.partition("#")
        kept = [piece for piece in query.split("&") if unquote_plus(piece.partition("=")[0]) not in dropped]
        return head + ("?" + "&".join(kept) if kept else "") + mark + fragment


def validated_identity(identity: int, validators: Validators) -> int:
    """XXH3_64(u64 url identity ++ LP(ETag) ++ LP(Last-Modified) ++ LP(length in decimal)); an absent one is empty."""
    length = b"" if validators.length is None else str(validators.length).encode()
    return xxh3_64_intdigest(
        pack("<Q", identity)
        + length_prefixed(validators.etag.encode("utf-8", "surrogateescape"))
        + length_prefixed(validators.last_modified.encode("utf-8", "surrogateescape"))
        + length_prefixed(length)
    )
