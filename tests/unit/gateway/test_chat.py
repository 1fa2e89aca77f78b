"""One request over HTTP: published once, answered once."""

import asyncio
import socket

import aiohttp
import orjson
import pytest

from schemas.control import ControlKind
from schemas.work import ResponseError
from services.runtime.topics import REQUESTS
from tests.unit.gateway.conftest import CHAT, PATH, Gateway, MakeGateway, error_of


class TestWhatIsPublished:
    async def test_the_body_and_where_to_answer(self, gateway: Gateway) -> None:
        call = gateway.post()
        request = await gateway.asked()
        [sent] = gateway.harness.sender.of(REQUESTS.name)
        assert request.body == CHAT
        assert request.reply_to == "kvroute.responses.gateway-1.v1"
        assert gateway.harness.topics_made == [request.reply_to]
        assert sent.key == f"/{request.request_id}"
        assert (request.tenant, request.route_only, request.priority) == ("", False, 0)
        now = gateway.clock.now_ms()
        assert (request.created_at_ms, request.deadline_ms) == (now, now + 120_000)
        await gateway.answer(request)
        await call

    async def test_headers_become_fields(self, gateway: Gateway) -> None:
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        call = gateway.post(headers={
            "X-Request-Id": "my:id-1", "X-Kvroute-Cache-Salt": "salt", "X-Kvroute-Priority": "-3",
            "X-Session-Id": "s1", "X-Kvroute-Identity": "content", "X-Kvroute-Deadline-Ms": "5000",
            "traceparent": trace,
        })  # fmt: skip
        request = await gateway.asked()
        assert request.model_dump(include={"request_id", "cache_salt", "priority", "session_id", "identity"}) == {
            "request_id": "my:id-1", "cache_salt": "salt", "priority": -3, "session_id": "s1", "identity": "content",
        }  # fmt: skip
        assert request.deadline_ms == gateway.clock.now_ms() + 5000
        await gateway.answer(request)
        response = await call
        assert response.headers["x-request-id"] == "my:id-1"

    async def test_fields_of_the_body_that_kvroute_knows_too(self, gateway: Gateway) -> None:
        call = gateway.post(body=CHAT | {"cache_salt": "s", "priority": 7})
        request = await gateway.asked()
        assert (request.cache_salt, request.priority) == ("s", 7)
        await gateway.answer(request)
        await call

    async def test_a_deadline_may_be_a_point_in_time_and_is_at_most_ten_minutes_away(self, gateway: Gateway) -> None:
        now = gateway.clock.now_ms()
        for number, (header, expected) in enumerate(
            [(now + 7, now + 7), (now + 10**9, now + 600_000), (10**9, now + 600_000)]
        ):
            call = gateway.post(headers={"X-Kvroute-Deadline-Ms": str(header)})
            request = await gateway.asked(number + 1)
            assert request.deadline_ms == expected
            await gateway.answer(request)
            await call

    async def test_a_large_body_goes_beside_kafka(self, make_gateway: MakeGateway) -> None:
        gateway = await make_gateway(blob_body_bytes=1024)
        body = CHAT | {"x": "y" * 2000}
        call = gateway.post(body=body)
        request = await gateway.asked()
        assert request.body == {}
        assert request.body_claim is not None
        assert orjson.loads(await gateway.app.blobs.get(request.body_claim)) == body
        [sent] = gateway.harness.sender.of(REQUESTS.name)
        assert len(sent.record.value or b"") < 1024
        await gateway.answer(request)
        await call

    async def test_nul_passes_through(self, gateway: Gateway) -> None:
        call = gateway.post(body=CHAT | {"user": "a\0b"})
        request = await gateway.asked()
        assert request.body["user"] == "a\0b"
        await gateway.answer(request)
        await call


class TestAnswers:
    async def test_whole(self, gateway: Gateway) -> None:
        call = gateway.post()
        await gateway.answer(await gateway.asked(), '{"id": "é"}')
        response = await call
        assert (response.status, response.content_type) == (200, "application/json")
        assert await response.read() == '{"id": "é"}'.encode()
        assert response.headers["x-kvroute-worker"] == "w1"
        assert response.headers["x-kvroute-attempt"] == "1"
        assert gateway.orders == []
        assert gateway.app.admission.in_flight == 0

    async def test_whole_in_pieces(self, gateway: Gateway) -> None:
        call = gateway.post()
        request = await gateway.asked()
        await gateway.answer(request, "lo}", index=1)
        await gateway.answer(request, "{hel", index=0, final=False)
        assert await (await call).read() == b"{hello}"

    async def test_stream(self, gateway: Gateway) -> None:
        call = gateway.post(body=CHAT | {"stream": True})
        request = await gateway.asked()
        await gateway.answer(request, 'data: {"a":1}\n\n', final=False)
        response = await call
        assert response.content_type == "text/event-stream"
        assert await response.content.readuntil(b"\n\n") == b'data: {"a":1}\n\n'
        await gateway.answer(request, "data: [DONE]\n\n", index=1)
        assert await response.content.read() == b"data: [DONE]\n\n"
        assert gateway.orders == []

    async def test_a_piece_leaves_at_once(self, gateway: Gateway) -> None:
        """TCP_NODELAY is set on what the server accepts."""
        seen: list[int] = []
        call = gateway.post(body=CHAT | {"stream": True})
        request = await gateway.asked()
        runner = gateway.app.server._runner
        assert runner is not None
        assert runner.server is not None
        for connection in runner.server.connections:
            transport = connection.transport
            assert transport is not None
            seen.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        assert seen
        assert all(seen)
        await gateway.answer(request, "data: [DONE]\n\n")
        await (await call).read()

    async def test_a_refusal_keeps_its_status(self, gateway: Gateway) -> None:
        for count, (status, code) in enumerate(
            [(400, "forbidden_url"), (404, "model_not_found"), (504, "deadline_exceeded")]
        ):
            for stream in (False, True):
                call = gateway.post(body=CHAT | {"stream": stream})
                await gateway.refuse(await gateway.asked(2 * count + stream + 1), status, code)
                assert await error_of(await call) == (status, code)
        assert gateway.orders == []

    async def test_overload_says_when_to_come_again(self, gateway: Gateway) -> None:
        call = gateway.post()
        await gateway.refuse(await gateway.asked(), 429, "all_busy")
        assert int((await call).headers["Retry-After"]) > 0

    async def test_an_error_after_output_ends_the_stream(self, gateway: Gateway) -> None:
        call = gateway.post(body=CHAT | {"stream": True})
        request = await gateway.asked()
        await gateway.answer(request, "data: {}\n\n", final=False)
        error = ResponseError(status=502, type="server_error", message="broke", code="engine_connection_lost")
        await gateway.answer(request, "", index=1, error=error)
        text = await (await call).text()
        assert text.startswith("data: {}\n\ndata: ")
        assert orjson.loads(text.split("data: ")[2])["error"]["code"] == "engine_connection_lost"
        assert "[DONE]" not in text

    async def test_an_error_after_a_whole_answer_began(self, gateway: Gateway) -> None:
        call = gateway.post()
        request = await gateway.asked()
        await gateway.answer(request, "{", final=False)
        error = ResponseError(status=502, type="server_error", message="broke", code="engine_connection_lost")
        await gateway.answer(request, "", index=1, error=error)
        assert await error_of(await call) == (502, "engine_connection_lost")

    async def test_pieces_for_nobody_are_dropped(self, gateway: Gateway) -> None:
        call = gateway.post()
        request = await gateway.asked()
        await gateway.answer(request.model_copy(update={"request_id": "stranger"}))
        await gateway.answer(request.model_copy(update={"tenant": "other"}))
        await gateway.answer(request, "mine")
        assert await (await call).read() == b"mine"
        await gateway.answer(request, "late")

    async def test_rubbish_in_the_responses_topic_is_a_dead_letter(self, gateway: Gateway) -> None:
        for rubbish in (b"x", b"null", b"{}", b"[]"):
            await gateway.harness.push(gateway.app.reply_to, rubbish)
        assert [letter.code for letter in gateway.harness.dead_letters] == ["invalid_message"] * 4
        await gateway.harness.push(gateway.app.reply_to, None)


class TestAttempts:
    async def test_a_higher_attempt_takes_over_before_output(self, gateway: Gateway) -> None:
        call = gateway.post(body=CHAT | {"stream": True})
        request = await gateway.asked()
        await gateway.answer(request, "data: lost\n\n", index=1, final=False)
        await gateway.answer(request, "data: won\n\n", attempt=2, worker_id="w2")
        response = await call
        assert await response.text() == "data: won\n\n"
        assert (response.headers["x-kvroute-worker"], response.headers["x-kvroute-attempt"]) == ("w2", "2")

    async def test_after_output_it_ends_the_stream(self, gateway: Gateway) -> None:
        call = gateway.post(body=CHAT | {"stream": True})
        request = await gateway.asked()
        await gateway.answer(request, "data: 1\n\n", final=False)
        await gateway.answer(request, "data: 2\n\n", attempt=2)
        text = await (await call).text()
        assert "attempt_superseded" in text
        assert "data: 2" not in text
        await gateway.until(lambda: gateway.orders)
        assert gateway.orders[0].kind is ControlKind.CANCEL


class TestLostWorkers:
    async def stream(self, gateway: Gateway) -> tuple[asyncio.Task[aiohttp.ClientResponse], object]:
        await gateway.worker()
        await gateway.beat()
        call = gateway.post(body=CHAT | {"stream": True})
        request = await gateway.asked()
        return call, request

    @pytest.mark.parametrize("how", ["replaced", "retired", "silent", "heartbeat of a newer epoch"])
    async def test_after_output_the_stream_ends_with_an_error(self, gateway: Gateway, how: str) -> None:
        from schemas.worker import WorkerState

        call, request = await self.stream(gateway)
        await gateway.answer(request, "data: 1\n\n", final=False)  # type: ignore[arg-type]
        await gateway.check()
        gateway.clock.advance(3)
        match how:
            case "replaced":
                await gateway.worker(epoch=6)
            case "retired":
                await gateway.worker(state=WorkerState.RETIRED)
            case "heartbeat of a newer epoch":
                await gateway.beat(epoch=6)
            case "silent":
                gateway.clock.advance(4)
                await gateway.beat("w2")
        await gateway.check()
        gateway.clock.advance(2)
        await gateway.beat("w2")
        await gateway.check()
        assert "worker_lost" in await (await call).text()

    async def test_before_output_the_next_attempt_is_waited_for(self, gateway: Gateway) -> None:
        call, request = await self.stream(gateway)
        await gateway.worker(epoch=6)
        await gateway.check()
        await gateway.answer(request, "data: 2\n\n", attempt=2, worker_id="w2")  # type: ignore[arg-type]
        assert await (await call).text() == "data: 2\n\n"

    async def test_a_last_piece_may_be_on_its_way(self, gateway: Gateway) -> None:
        """The news of a worker's end and its last pieces come through different topics."""
        call, request = await self.stream(gateway)
        await gateway.answer(request, "data: 1\n\n", final=False)  # type: ignore[arg-type]
        await gateway.worker(epoch=6)
        await gateway.check()
        await gateway.answer(request, "data: 2\n\n", index=1)  # type: ignore[arg-type]
        assert await (await call).text() == "data: 1\n\ndata: 2\n\n"

    async def test_pieces_are_signs_of_life(self, gateway: Gateway) -> None:
        call, request = await self.stream(gateway)
        for index in range(5):
            await gateway.answer(request, f"data: {index}\n\n", index=index, final=index == 4)  # type: ignore[arg-type]
            gateway.clock.advance(5)
            await gateway.beat("w2")
            await gateway.check()
        assert "error" not in await (await call).text()

    async def test_a_missing_piece_is_not_waited_for_long(self, gateway: Gateway) -> None:
        call, request = await self.stream(gateway)
        await gateway.answer(request, "data: 0\n\n", final=False)  # type: ignore[arg-type]
        await gateway.answer(request, "data: 2\n\n", index=2)  # type: ignore[arg-type]
        gateway.clock.advance(5.5)
        await gateway.beat()
        await gateway.check()
        assert "pieces_missing" in await (await call).text()


class TestWhoGoesAway:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_cancels(self, gateway: Gateway, stream: bool) -> None:
        call = gateway.post(body=CHAT | {"stream": stream})
        request = await gateway.asked()
        if stream:
            await gateway.answer(request, "data: 1\n\n", final=False)
            (await call).close()
        else:
            call.cancel()
        await gateway.until(lambda: gateway.orders)
        [order] = gateway.orders
        assert (order.kind, order.key, order.attempt) == (ControlKind.CANCEL, f"/{request.request_id}", 0)
        await gateway.until(lambda: gateway.app.admission.in_flight == 0)
        assert len(gateway.app.register) == 0

    async def test_whose_deadline_passes_gets_504_and_the_request_is_cancelled(self, gateway: Gateway) -> None:
        call = gateway.post(headers={"X-Kvroute-Deadline-Ms": "20"})
        await gateway.asked()
        assert await error_of(await call) == (504, "deadline_exceeded")
        await gateway.until(lambda: gateway.orders)
        assert gateway.orders[0].reason == "deadline_exceeded"

    async def test_whose_deadline_passes_within_a_stream_gets_an_event(self, gateway: Gateway) -> None:
        call = gateway.post(body=CHAT | {"stream": True}, headers={"X-Kvroute-Deadline-Ms": "40"})
        await gateway.answer(await gateway.asked(), "data: 1\n\n", final=False)
        assert "deadline_exceeded" in await (await call).text()

    async def test_a_slow_reader_does_not_fill_our_memory(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("services.gateway.pending._QUEUED_BYTES", 1000)
        call = gateway.post()
        request = await gateway.asked()
        for index in range(40):
            await gateway.answer(request, "x" * 100, index=index, final=False)
        assert await error_of(await call) == (502, "client_too_slow")


class TestDraining:
    async def test_what_does_not_end_in_time_is_cancelled_before_we_leave(self, make_gateway: MakeGateway) -> None:
        gateway = await make_gateway(drain_seconds=0.05)
        call = gateway.post()
        request = await gateway.asked()
        await gateway.app.server.drain()
        await gateway.app.server.stop()
        assert [order.request_id for order in gateway.orders] == [request.request_id]
        with pytest.raises(aiohttp.ClientError):
            await call

    async def test_what_is_in_flight_is_answered_and_nothing_new_is_taken(self, make_gateway: MakeGateway) -> None:
        gateway = await make_gateway(drain_seconds=5)
        call = gateway.post()
        request = await gateway.asked()
        drain = asyncio.create_task(gateway.app.server.drain())
        await gateway.until(lambda: gateway.app.chat.draining)
        assert not drain.done()
        await gateway.answer(request, "{}")
        assert (await call).status == 200
        await drain
        with pytest.raises(aiohttp.ClientConnectorError):
            async with aiohttp.ClientSession() as fresh:
                await fresh.post(f"http://127.0.0.1:{gateway.client._base_url.port}{PATH}", json=CHAT)  # type: ignore[union-attr]
