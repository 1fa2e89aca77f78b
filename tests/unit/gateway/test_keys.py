"""API keys stand for tenants."""

from pathlib import Path

import pytest

from services.gateway.keys import ApiKeys
from services.runtime.errors import ConfigError, Refused
from tests.unit.gateway.conftest import Gateway, MakeGateway, error_of


def test_pairs_and_files(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# tenants\nsk-1=acme\n\n  sk=2=beta  \n")
    for setting in ("sk-1=acme, sk=2=beta,", f"@{file}"):
        keys = ApiKeys.parse(setting)
        assert keys is not None
        assert keys.tenant("Bearer sk-1") == "acme"
        assert keys.tenant("bearer  sk=2 ") == "beta"


@pytest.mark.parametrize("setting", [None, "", "  "])
def test_none_are_asked_for_when_none_are_set(setting: str | None) -> None:
    assert ApiKeys.parse(setting) is None


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic sk-1", "sk-1", "Bearer sk-2", "Bearer sk-1x", "Bearer \udcff"]
)
def test_anything_else_is_401(header: str | None) -> None:
    keys = ApiKeys.parse("sk-1=acme")
    assert keys is not None
    with pytest.raises(Refused) as caught:
        keys.tenant(header)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "setting",
    ["SECRET", "SECRET=", "=acme", "SECRET=a/b", "SECRET=a,SECRET=b", ",", "@/no/such/file", "SECRET=" + "x" * 65],
)
def test_a_wrong_setting_says_so_without_the_key(setting: str) -> None:
    with pytest.raises(ConfigError, match="KVROUTE_GATEWAY_API_KEYS") as caught:
        ApiKeys.parse(setting)
    assert "SECRET" not in str(caught.value)


@pytest.fixture
async def locked(make_gateway: MakeGateway) -> Gateway:
    return await make_gateway(gateway_api_keys="sk-1=acme")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("POST", "/v1/route"), ("POST", "/v1/route/r1/done")],
)
async def test_every_api_path_asks_for_one(locked: Gateway, method: str, path: str) -> None:
    response = await locked.client.request(method, path)
    assert await error_of(response) == (401, "invalid_api_key")
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert not locked.harness.sender.sent


async def test_the_key_names_the_tenant(locked: Gateway) -> None:
    call = locked.post(headers={"Authorization": "Bearer sk-1"})
    request = await locked.asked()
    assert request.tenant == "acme"
    await locked.answer(request)
    assert (await call).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_operators_paths_ask_for_none(locked: Gateway, path: str) -> None:
    assert (await locked.client.get(path)).status == 200
