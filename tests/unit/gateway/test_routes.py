"""Models, routes without an answer, health."""

import pytest

from schemas.control import ControlKind
from schemas.worker import WorkerState
from services.runtime.listening import CannotListen
from services.runtime.projection import Projection
from services.runtime.topics import WORKERS
from tests.unit.gateway.conftest import CHAT, Gateway, MakeGateway, error_of


class TestModels:
    async def ids(self, gateway: Gateway) -> list[str]:
        body = await (await gateway.client.get("/v1/models")).json()
        assert body["object"] == "list"
        return [model["id"] for model in body["data"]]

    async def test_served_names_and_adapters_of_workers_that_are_heard(self, gateway: Gateway) -> None:
        assert await self.ids(gateway) == []
        await gateway.worker("w1", model="qwen", loras=["qwen-sql"])
        await gateway.worker("w2", model="qwen")
        await gateway.worker("w3", model="llava", state=WorkerState.DRAINING)
        await gateway.worker("w4", model="gone", state=WorkerState.RETIRED)
        await gateway.worker("w5", model="silent")
        for worker in ("w1", "w2", "w3", "w4"):
            await gateway.beat(worker)
        assert await self.ids(gateway) == ["llava", "qwen", "qwen-sql"]
        body = await (await gateway.client.get("/v1/models")).json()
        adapter = next(model for model in body["data"] if model["id"] == "qwen-sql")
        assert adapter == {
            "id": "qwen-sql", "object": "model", "created": 1_700_000_000, "owned_by": "kvroute", "parent": "qwen",
        }  # fmt: skip

    async def test_a_model_is_listed_until_its_last_worker_is_long_silent(self, gateway: Gateway) -> None:
        await gateway.worker()
        await gateway.beat()
        gateway.clock.advance(29)
        assert await self.ids(gateway) == ["m"]
        gateway.clock.advance(2)
        assert await self.ids(gateway) == []

    async def test_a_heartbeat_from_before_says_nothing_of_now_whatever_its_clock_says(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await gateway.worker()
        with monkeypatch.context() as reading_back:
            reading_back.setattr(Projection, "caught_up", property(lambda _: False))
            await gateway.beat()
        assert await self.ids(gateway) == []
        await gateway.beat(timestamp_ms=0)
        assert await self.ids(gateway) == ["m"]

    async def test_a_deleted_registration_and_one_of_an_older_epoch(self, gateway: Gateway) -> None:
        await gateway.worker(epoch=5)
        await gateway.beat()
        await gateway.worker(epoch=4, model="older")
        assert await self.ids(gateway) == ["m"]
        await gateway.harness.push(WORKERS, None, key="w1")
        assert await self.ids(gateway) == []


class TestRoute:
    async def test_asks_without_running(self, gateway: Gateway) -> None:
        call = gateway.post("/v1/route", body=CHAT | {"stream": True})
        request = await gateway.asked()
        assert (request.route_only, request.book) == (True, False)
        await gateway.answer(request, "", route={"worker_id": "w7", "overlap_blocks": 3})
        response = await call
        assert await response.json() == {
            "request_id": request.request_id, "attempt": 1, "worker_id": "w7", "overlap_blocks": 3,
        }  # fmt: skip
        assert response.headers["x-kvroute-worker"] == "w1"

    @pytest.mark.parametrize(
        ("query", "booked"), [("?book=true", True), ("?book=1", True), ("?book=0", False), ("", False)]
    )
    async def test_may_be_booked(self, gateway: Gateway, query: str, booked: bool) -> None:
        call = gateway.post("/v1/route" + query)
        request = await gateway.asked()
        assert request.book is booked
        await gateway.answer(request, "", route={})
        await call

    async def test_a_refusal_is_an_error(self, gateway: Gateway) -> None:
        call = gateway.post("/v1/route")
        await gateway.refuse(await gateway.asked())
        assert await error_of(await call) == (503, "no_worker")

    async def test_done_is_said_on_control(self, gateway: Gateway) -> None:
        response = await gateway.client.post("/v1/route/my:id-1/done")
        assert response.status == 202
        [order] = gateway.orders
        assert (order.kind, order.key) == (ControlKind.DONE, "/my:id-1")

    async def test_done_of_what_is_no_id(self, gateway: Gateway) -> None:
        assert await error_of(await gateway.client.post("/v1/route/a%20b/done")) == (400, "invalid_request")


class TestHealth:
    async def test_ready_when_every_check_says_so(self, gateway: Gateway) -> None:
        assert (await gateway.client.get("/readyz")).status == 200
        gateway.harness.readiness["nothing works"] = lambda: False
        assert (await gateway.client.get("/readyz")).status == 503
        assert (await gateway.client.get("/healthz")).status == 200

    async def test_metrics(self, gateway: Gateway) -> None:
        await gateway.client.get("/v1/models")
        text = await (await gateway.client.get("/metrics")).text()
        assert 'kvroute_gateway_requests_total{route="/v1/models",status="200"}' in text
        assert "kvroute_gateway_in_flight" in text


async def test_a_taken_port_is_said_by_its_setting(make_gateway: MakeGateway, gateway: Gateway) -> None:
    with pytest.raises(CannotListen, match="KVROUTE_GATEWAY_PORT"):
        await make_gateway(gateway_port=gateway.app.server.port)
