"""Identity by URL: as it is, without parameters that expire, or mixed with what the server says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack
from urllib.parse import unquote_plus, urlsplit

from xxhash import xxh3_64_intdigest

from services.kv.identity import length_prefixed, url_identity
from services.media.fetch import Validators
from services.runtime.errors import ConfigError

PRESETS: Mapping[str, frozenset[str]] = {
    "s3": frozenset({
        "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature",
        "X-Amz-Security-Token", "AWSAccessKeyId", "Signature", "Expires", "x-amz-security-token",
    }),
    "gcs": frozenset({
        "X-Goog-Algorithm", "X-Goog-Credential", "X-Goog-Date", "X-Goog-Expires", "X-Goog-SignedHeaders",
        "X-Goog-Signature", "GoogleAccessId", "Signature", "Expires",
    }),
    "azure": frozenset({
        "sv", "ss", "srt", "sp", "st", "se", "sip", "spr", "sr", "sig", "sdd", "si", "skoid", "sktid", "skt", "ske",
        "sks", "skv", "saoid", "suoid", "scid",
    }),
    "cloudfront": frozenset({"Expires", "Signature", "Key-Pair-Id", "Policy", "Hash-Algorithm"}),
}  # fmt: skip
"""Parameters of signatures that expire, by who signs. Versions and snapshots of an object are not among them."""


class DroppedParams:
    """``KVROUTE_IDENTITY_DROP_PARAMS``: query parameters, by host, that say nothing about the medium.

    A host is exact or ``*.domain`` (any host below it; the longest counts); ``@s3`` and the like name a preset.
    """

    def __init__(self, setting: Mapping[str, str]) -> None:
        """Raises ConfigError for a host without parameters or an unknown preset."""
        self._by_host = {host.lower(): _listed(host, names) for host, names in setting.items()}

    def identity(self, url: str, tenant: str) -> int:
        """URL identity; listed parameters are left out only for a tenant, so that nobody meets another's media."""
        return url_identity(self._without(url) if tenant and self._by_host else url)

    def key(self, url: str, tenant: str) -> tuple[str, str]:
        """What a URL is remembered by: without the listed parameters it is remembered for its tenant alone."""
        without = self._without(url) if tenant and self._by_host else url
        return (without, "") if without == url else (without, tenant)

    def _without(self, url: str) -> str:
        try:
            split = urlsplit(url)
        except ValueError:
            return url  # the fence refuses it
        dropped = self._for_host((split.hostname or "").removesuffix("."))
        if not dropped or not split.query:
            return url
        head, _, rest = url.partition("?")
        query, mark, fragment = rest.partition("#")
        kept = [piece for piece in query.split("&") if unquote_plus(piece.partition("=")[0]) not in dropped]
        return head + ("?" + "&".join(kept) if kept else "") + mark + fragment

    def _for_host(self, host: str) -> frozenset[str]:
        if host in self._by_host:
            return self._by_host[host]
        labels = host.split(".")
        below = (self._by_host.get("*." + ".".join(labels[first:])) for first in range(1, len(labels)))
        return next((names for names in below if names is not None), frozenset())


def _listed(host: str, names: str) -> frozenset[str]:
    listed: set[str] = set()
    for name in filter(None, names.split("+")):
        if not name.startswith("@"):
            listed.add(name)
        elif (preset := PRESETS.get(name[1:])) is not None:
            listed |= preset
        else:
            raise ConfigError(
                f"KVROUTE_IDENTITY_DROP_PARAMS names {name} for {host}, expected one of "
                f"{', '.join('@' + known for known in PRESETS)} or names of parameters"
            )
    if not listed:
        raise ConfigError(
            f"KVROUTE_IDENTITY_DROP_PARAMS names the host {host} without parameters, expected host=param+param"
        )
    return frozenset(listed)


def validated_identity(identity: int, validators: Validators) -> int:
    """XXH3_64(u64 url identity ++ LP(ETag) ++ LP(Last-Modified) ++ LP(length in decimal)); an absent one is empty."""
    length = b"" if validators.length is None else str(validators.length).encode()
    return xxh3_64_intdigest(
        pack("<Q", identity)
        + length_prefixed(validators.etag.encode("utf-8", "surrogateescape"))
        + length_prefixed(validators.last_modified.encode("utf-8", "surrogateescape"))
        + length_prefixed(length)
    )
