"""Whatever clients send, they get an OpenAI error, and the next request is served."""

import asyncio

import aiohttp
import orjson
import pytest

from services.runtime.errors import BadRecord, Transient
from services.runtime.topics import REQUESTS
from tests.unit.gateway.conftest import CHAT, PATH, Gateway, MakeGateway, error_of

JSON = {"Content-Type": "application/json"}


async def serves(gateway: Gateway) -> bool:
    before = len(gateway.published)
    call = gateway.post()
    await gateway.answer(await gateway.asked(before + 1))
    return (await call).status == 200


class TestBodies:
    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (b"", "not_json"),
            (b"not json", "not_json"),
            (b"\xff\xfe", "not_json"),
            (b"null", "invalid_request"),
            (b"[]", "invalid_request"),
            (b"5", "invalid_request"),
            (b"[" * 10_000 + b"]" * 10_000, "not_json"),
            (rb'{"model": "\ud800", "messages": []}', "not_json"),
            (b'{"a":' + b"[" * 600 + b"]" * 600 + b"}", "too_deep"),
            (b'{"a":[' + b"[]," * 5_000_000 + b"0]}", "too_complex"),
        ],
    )
    async def test_that_are_no_requests(self, gateway: Gateway, data: bytes, code: str) -> None:
        assert await error_of(await gateway.post(data=data, headers=JSON)) == (400, code)
        assert not gateway.published
        assert gateway.app.admission.bytes == 0
        assert await serves(gateway)

    async def test_of_twenty_megabytes(self, gateway: Gateway) -> None:
        response = await gateway.post(data=b"x" * (20 << 20), headers=JSON)
        assert await error_of(response) == (413, "body_too_large")
        assert gateway.app.admission.bytes == 0
        assert await serves(gateway)

    async def test_whose_length_is_not_said_are_cut_off_at_the_limit(self, make_gateway: MakeGateway) -> None:
        gateway = await make_gateway(gateway_max_body_bytes=4096)

        async def endless():  # type: ignore[no-untyped-def]
            for _ in range(100):
                yield b"x" * 1024

        try:
            response = await gateway.post(data=endless(), headers=JSON)
        except aiohttp.ClientError:
            pass  # the server may hang up while the client still sends
        else:
            assert await error_of(response) == (413, "body_too_large")
        assert await serves(gateway)

    async def test_that_wait_for_each_other_are_bounded_together(self, make_gateway: MakeGateway) -> None:
        gateway = await make_gateway()
        gateway.app.admission.take_bytes((256 << 20) - 10)
        response = await gateway.post()
        assert await error_of(response) == (429, "too_many_bytes")
        assert int(response.headers["Retry-After"]) > 0
        gateway.app.admission.give_back((256 << 20) - 10)
        assert await serves(gateway)

    async def test_that_do_not_come(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("services.gateway.body.READ_SECONDS", 0.02)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.app.server.port)
        writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{{".encode())
        assert b" 408 " in await reader.readline()
        writer.close()

    async def test_that_are_still_being_sent_keep_nobody_out(self, make_gateway: MakeGateway) -> None:
        gateway = await make_gateway(gateway_max_in_flight=1)
        slow = [await asyncio.open_connection("127.0.0.1", gateway.app.server.port) for _ in range(3)]
        for _, writer in slow:
            writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{{".encode())
            await writer.drain()
        assert await serves(gateway)
        for _, writer in slow:
            writer.close()

    async def test_that_are_not_encoded_as_they_say(self, gateway: Gateway) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.app.server.port)
        writer.write(
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc".encode()
        )
        answer = await reader.read(4096)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"invalid_body"' in answer
        assert gateway.app.admission.bytes == 0
        assert await serves(gateway)

    async def test_the_limit_itself_is_allowed(self, make_gateway: MakeGateway) -> None:
        gateway = await make_gateway(gateway_max_body_bytes=1024)
        body = orjson.dumps(CHAT)
        padded = body[:-1] + b" " * (1024 - len(body)) + b"}"
        call = gateway.post(data=padded, headers=JSON)
        await gateway.answer(await gateway.asked())
        assert (await call).status == 200


class TestHeaders:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("X-Request-Id", ""), ("X-Request-Id", "a/b"), ("X-Request-Id", "x" * 129), ("X-Request-Id", "a b"),
            ("X-Session-Id", "a/b"), ("X-Kvroute-Cache-Salt", ""), ("X-Kvroute-Cache-Salt", "x" * 257),
            ("X-Kvroute-Priority", "high"), ("X-Kvroute-Priority", "1.5"), ("X-Kvroute-Priority", "9" * 20),
            ("X-Kvroute-Identity", "magic"), ("X-Kvroute-Deadline-Ms", "soon"), ("X-Kvroute-Deadline-Ms", "-5"),
            ("X-Kvroute-Deadline-Ms", "0"), ("X-Kvroute-Deadline-Ms", "9" * 30),
        ],
    )  # fmt: skip
    async def test_that_say_nothing_sensible(self, gateway: Gateway, name: str, value: str) -> None:
        assert await error_of(await gateway.post(headers={name: value})) == (400, "invalid_request")
        assert not gateway.published

    async def test_a_deadline_in_the_past(self, gateway: Gateway) -> None:
        past = str(gateway.clock.now_ms() - 5)
        assert await error_of(await gateway.post(headers={"X-Kvroute-Deadline-Ms": past})) == (504, "deadline_exceeded")

    async def test_salts_that_differ(self, gateway: Gateway) -> None:
        call = gateway.post(body=CHAT | {"cache_salt": "a"}, headers={"X-Kvroute-Cache-Salt": "b"})
        assert await error_of(await call) == (400, "invalid_request")

    async def test_tenant_and_reply_to_are_not_the_clients_to_say(self, gateway: Gateway) -> None:
        call = gateway.post(
            body=CHAT | {"tenant": "x", "reply_to": "kvroute.decisions.v1", "body_claim": {"uri": "blob:" + "0" * 32}},
            headers={"X-Tenant": "x", "Reply-To": "kvroute.decisions.v1"},
        )
        request = await gateway.asked()
        assert (request.tenant, request.reply_to, request.body_claim) == ("", gateway.app.reply_to, None)
        await gateway.answer(request)
        await call


class TestWhoseErrorItIs:
    @pytest.mark.parametrize("stated", ["my-id", "a/b", None])
    async def test_a_valid_id_comes_back_with_every_error(self, gateway: Gateway, stated: str | None) -> None:
        headers = {"X-Request-Id": stated} if stated else {}
        for call in (gateway.post(data=b"x", headers=headers), gateway.post("/nothing", headers=headers)):
            assert (await call).headers.get("x-request-id") == ("my-id" if stated == "my-id" else None)


class TestPaths:
    @pytest.mark.parametrize(
        "path", ["/", "/v1", "/v1/nothing", "/v1/chat/completions/x", "/v1/route//done", "/favicon.ico"]
    )
    async def test_that_do_not_exist(self, gateway: Gateway, path: str) -> None:
        assert await error_of(await gateway.client.get(path)) == (404, "not_found")

    async def test_methods_that_are_not_allowed(self, gateway: Gateway) -> None:
        for method, path in (("GET", PATH), ("PUT", PATH), ("POST", "/v1/models"), ("GET", "/v1/route")):
            response = await gateway.client.request(method, path)
            assert await error_of(response) == (405, "method_not_allowed")
            assert response.headers["Allow"]


class TestTheSameId:
    async def test_in_flight(self, gateway: Gateway) -> None:
        call = gateway.post(headers={"X-Request-Id": "one"})
        request = await gateway.asked()
        assert await error_of(await gateway.post(headers={"X-Request-Id": "one"})) == (409, "duplicate_request_id")
        await gateway.answer(request)
        assert (await call).status == 200
        assert len(gateway.published) == 1

    async def test_within_the_hour(self, gateway: Gateway) -> None:
        async def again() -> int:
            before = len(gateway.published)
            call = gateway.post(headers={"X-Request-Id": "one"})
            await gateway.until(lambda: call.done() or len(gateway.published) > before)
            if not call.done():
                await gateway.answer(gateway.published[-1])
            return (await call).status

        assert await again() == 200
        gateway.clock.advance(3500)
        assert await again() == 409
        gateway.clock.advance(200)
        assert await again() == 200

    async def test_of_two_tenants_is_two_requests(self, make_gateway: MakeGateway) -> None:
        gateway = await make_gateway(gateway_api_keys="k1=a,k2=b")
        calls = []
        for number, key in enumerate(("k1", "k2")):
            calls.append(gateway.post(headers={"X-Request-Id": "one", "Authorization": f"Bearer {key}"}))
            request = await gateway.asked(number + 1)
            assert request.tenant == "ab"[number]
            await gateway.answer(request)
        assert [(await call).status for call in calls] == [200, 200]


class TestBroker:
    async def test_that_can_not_be_reached_is_503(self, gateway: Gateway) -> None:
        gateway.harness.sender.fail_next(Transient("broker at 10.1.2.3 is away"), REQUESTS.name)
        response = await gateway.post()
        assert await error_of(response) == (503, "queue_unavailable")
        assert "Retry-After" in response.headers
        assert "10.1.2.3" not in await response.text()
        # It may have reached Kafka all the same.
        await gateway.until(lambda: gateway.orders)
        assert await serves(gateway)

    async def test_that_finds_the_record_too_large_is_413(self, gateway: Gateway) -> None:
        gateway.harness.sender.fail_next(BadRecord("record_too_large", "too large"), REQUESTS.name)
        headers = {"X-Request-Id": "one"}
        assert await error_of(await gateway.post(headers=headers)) == (413, "record_too_large")
        assert not gateway.orders
        call = gateway.post(headers=headers)
        await gateway.answer(await gateway.asked())
        assert (await call).status == 200

    async def test_a_bug_is_500_without_its_text(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise ZeroDivisionError("SECRET")

        monkeypatch.setattr(gateway.app.admission, "check_room", fail)
        response = await gateway.post()
        assert await error_of(response) == (500, "gateway_error")
        assert "SECRET" not in await response.text()


class TestTooMany:
    async def test_in_flight(self, make_gateway: MakeGateway) -> None:
        gateway = await make_gateway(gateway_max_in_flight=2)
        calls = [gateway.post(), gateway.post()]
        await gateway.asked(2)
        response = await gateway.post()
        assert await error_of(response) == (429, "too_many_requests")
        assert int(response.headers["Retry-After"]) > 0
        for request in gateway.published:
            await gateway.answer(request)
        assert [(await call).status for call in calls] == [200, 200]
        assert await serves(gateway)

    async def test_for_the_deadline(self, gateway: Gateway) -> None:
        stream = CHAT | {"stream": True}
        calls = [gateway.post(body=stream) for _ in range(8)]
        await gateway.asked(8)
        gateway.clock.advance(40)
        response = await gateway.post(headers={"X-Kvroute-Deadline-Ms": "30000"})
        assert await error_of(response) == (429, "deadline_hopeless")
        later = gateway.post(headers={"X-Kvroute-Deadline-Ms": "60000"})
        await gateway.asked(9)
        for request in gateway.published:
            await gateway.answer(request, "data: [DONE]\n\n")
        for call in (*calls, later):
            assert (await call).status == 200
