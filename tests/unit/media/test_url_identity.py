"""Query parameters that expire: left out by host, for a tenant only."""

from __future__ import annotations

import pytest

from services.kv.identity import url_identity
from services.media.url_identity import PRESETS, DroppedParams
from services.runtime.errors import ConfigError

SIGNED = {
    "s3": "https://b.s3.eu-west-1.amazonaws.com/a.png?versionId=7&X-Amz-Algorithm=A&X-Amz-Credential=c%2Fd&X-Amz-Date=1"
    "&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Security-Token=t&X-Amz-Signature=ab",
    "gcs": "https://storage.googleapis.com/b/a.png?generation=7&X-Goog-Algorithm=A&X-Goog-Credential=c&X-Goog-Date=1"
    "&X-Goog-Expires=60&X-Goog-SignedHeaders=host&X-Goog-Signature=ab",
    "azure": "https://x.blob.core.windows.net/c/a.png?versionid=7&sv=2024-01-01&st=1&se=2&sr=b&sp=r&spr=https&sig=a%3D",
    "cloudfront": "https://d1.cloudfront.net/a.png?v=7&Expires=1&Signature=a~b&Key-Pair-Id=K",
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_leaves_what_names_the_object(preset: str) -> None:
    url = SIGNED[preset]
    host = url.split("/")[2]
    kept = url.partition("&")[0]
    dropped = DroppedParams({host: f"@{preset}"})
    assert dropped.identity(url, "t") == url_identity(kept)
    assert dropped.key(url, "t") == (kept, "t")


def test_without_a_tenant_nothing_is_left_out() -> None:
    dropped = DroppedParams({"d1.cloudfront.net": "@cloudfront"})
    url = SIGNED["cloudfront"]
    assert dropped.identity(url, "") == url_identity(url)
    assert dropped.key(url, "") == (url, "")


def test_the_longest_domain_counts() -> None:
    dropped = DroppedParams({"*.example.com": "a", "*.cdn.example.com": "b+@cloudfront", "x.cdn.example.com": "c"})
    query = "a=1&b=1&c=1&Expires=1"
    kept = {
        "example.com": "?a=1&b=1&c=1&Expires=1",
        "www.example.com": "?b=1&c=1&Expires=1",
        "y.cdn.example.com": "?a=1&c=1",
        "x.cdn.example.com": "?a=1&b=1&Expires=1",
    }
    for host, rest in kept.items():
        assert dropped.identity(f"https://{host}/p?{query}", "t") == url_identity(f"https://{host}/p{rest}")


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match="@s4 for h, expected one of @s3, @gcs"):
        DroppedParams({"h": "@s4"})


def test_a_url_that_is_none_is_left_to_the_fence() -> None:
    assert DroppedParams({"h": "a"}).identity("http://[", "t") == url_identity("http://[")
