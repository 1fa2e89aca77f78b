"""Bad input through the real thing, over HTTP and as Kafka records.

Each is answered with a clear error or routed by the text before it with the reason; what comes next is served; nothing
is lost and nothing loops.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator

import aiohttp
import orjson
import pytest
import pytest_asyncio
from pydantic import SecretStr

from services.audit.migrate import upgrade
from services.runtime.admin import create_topics
from tests.conftest import RunningBroker
from tests.e2e.asking import body, picture
from tests.e2e.bad_bodies import BAD_MEDIA, BODIES, BODIES_BY_KAFKA, ENGINE_SAYS, GARBAGE, RECORDS, chat
from tests.e2e.field import Field
from tests.e2e.fleet import MODEL, Fleet
from tests.e2e.site import Site
from tests.e2e.wire import Wire
from tests.unit.media.images import data_uri
from tests.waiting import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

ANSWERS = "kvroute.responses.bad-input.v1"
SYSTEM = "You look at pictures. " * 12
LOOP_LAG_SECONDS = 0.25


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def field(broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    """One fleet for the module: a process a stage, one worker."""
    folder = tmp_path_factory.mktemp("bad-input")
    settings = broker.settings(folder, database_url=SecretStr(f"sqlite+aiosqlite:///{folder}/audit.sqlite3"))
    await create_topics(settings)
    await upgrade(settings)
    fleet = Fleet(settings, folder)
    timeout = aiohttp.ClientTimeout(total=90)
    try:
        await fleet.worker("w1")
        await fleet.stage("media", KVROUTE_MEDIA_FETCH_SECONDS="2")
        for stage in ("gateway", "layout", "router", "audit"):
            await fleet.stage(stage)
        await fleet.ready()
        async with Wire(settings, ANSWERS) as wire, aiohttp.ClientSession(timeout=timeout) as http, Site() as site:
            found = Field(fleet, wire, http, site)
            watching = asyncio.ensure_future(found.watch())
            yield found
            watching.cancel()
    finally:
        await fleet.stop()


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def _goes_on(field: Field) -> AsyncIterator[None]:
    """After every test the next request is served and there are exactly the dead letters it said."""
    yield
    await field.serves()
    assert len(await field.wire.buried(field.buried)) == field.buried


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_over_http(field: Field, name: str) -> None:
    data, status, code = BODIES[name]
    found_status, found_code, answer = await field.post(data)
    assert (found_status, found_code) == (status, code), answer


async def test_a_request_that_asks_for_too_much_is_told_before_it_is_sent(field: Field) -> None:
    """20 MB announced by a client that waits to be told to go on: it is told 413, and nothing of it is read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", field.fleet.gateway_port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 20971520\r\nExpect: 100-continue\r\n\r\n"
    )
    lines = [await asyncio.wait_for(reader.readline(), 30) for _ in range(3)]
    writer.close()
    assert any(b" 413 " in line for line in lines), lines


@pytest.mark.parametrize("mode", ["url", "content"])
@pytest.mark.parametrize("name", BAD_MEDIA)
async def test_an_image_that_is_none(field: Field, name: str, mode: str) -> None:
    """Routed by the text before it, with the reason. The engine has the last word: it gives its own 400."""
    url, reason = BAD_MEDIA[name]
    url = url.replace("SITE", field.site.url)
    request_id = field.new_id("media")
    payload = orjson.dumps(body(MODEL.name, "What is it?", (url,), system=SYSTEM))
    status, code, answer = await field.post(payload, **{"X-Request-Id": request_id, "X-Kvroute-Identity": mode})
    assert (status, code) == ENGINE_SAYS.get(name, (400, "engine_400")), answer
    assert len(answer["error"]["message"]) > 20
    row = await field.row(request_id)
    assert (row.mode, row.reason, row.status) == ("text_prefix", reason, "failed"), row
    assert row.attempt == 1


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "blob:0123456789abcdef0123456789abcdef", "ftp://example.com/x.png", "javascript:alert(1)",
     "http://user:secret@example.com/x.png", "http:\\\\example.com/x.png", "http://example.com:22/x.png", "x.png"],
)  # fmt: skip
async def test_a_url_nobody_may_fetch(field: Field, url: str) -> None:
    answer = await field.ask("What is it?", (url,))
    assert answer.status == 400
    assert '"forbidden_url"' in answer.text
    assert "secret" not in answer.text


async def test_a_client_uuid_in_our_own_form_reaches_no_engine(field: Field) -> None:
    """Two different pictures under one uuid: had the engine been told, the second would be served from the first."""
    uuid = "0123456789abcdef" + "0" * 48
    for seed in (1, 2):
        payload = body(MODEL.name, "What is it?", (picture(seed),), system=SYSTEM)
        part = payload["messages"][1]["content"][0]
        part["uuid"] = uuid
        part["image_url"]["uuid"] = uuid
        request_id = field.new_id("uuid")
        status, code, answer = await field.post(orjson.dumps(payload), **{"X-Request-Id": request_id})
        assert (status, code) == (200, "")
        row = await field.row(request_id)
        assert (row.mode, row.reason) == ("text_prefix", "client_uuid")
        tokens = answer["usage"]
        before_the_picture = tokens["prompt_tokens"] - 48  # 6 x 8 tokens of the picture
        assert tokens["prompt_tokens_details"]["cached_tokens"] < before_the_picture
    without_data = body(MODEL.name, "x", ("",))
    without_data["messages"][0]["content"][0] = {"type": "image_url", "image_url": None, "uuid": uuid}
    status, code, _ = await field.post(orjson.dumps(without_data))
    assert (status, code) == (400, "invalid_request")


async def test_a_placeholder_token_typed_as_text(field: Field) -> None:
    """Without a picture it is text; beside one the engine's order of places is not known: text prefix."""
    alone = await field.ask("What does <|image_pad|> mean?", request_id="typed-alone")
    assert alone.status == 200
    assert (await field.row("typed-alone")).mode in ("exact", "text_prefix")
    payload = body(MODEL.name, "And <|vision_start|><|image_pad|><|vision_end|>?", (picture(3),), system=SYSTEM)
    status, _, answer = await field.post(orjson.dumps(payload), **{"X-Request-Id": "typed-beside"})
    assert status == 200, answer
    row = await field.row("typed-beside")
    assert (row.mode, row.reason) == ("text_prefix", "placeholder_mismatch")


async def test_more_images_than_placeholders(field: Field) -> None:
    """A part of a kind nobody knows stands before known ones: where the template puts it can't be said."""
    payload = body(MODEL.name, "x", (picture(4),), system=SYSTEM)
    # The template renders no content parts of a message whose content is text, so name two media in one part.
    payload["messages"][1]["content"].insert(0, {"type": "image_url", "image_url": {"url": picture(5)}, "text": "y"})
    payload["messages"][1]["content"].insert(0, {"type": "image", "image": "http://example.com/x.png"})
    status, code, answer = await field.post(orjson.dumps(payload), **{"X-Request-Id": "more-images"})
    assert status in (200, 400), answer
    assert code in ("", "engine_400")
    assert (await field.row("more-images")).reason is not None


async def test_more_media_than_anybody_means(field: Field) -> None:
    answer = await field.ask("Which?", tuple("data:image/png;base64,AAAA" for _ in range(300)))
    assert answer.status == 400
    assert '"too_many_media"' in answer.text


@pytest.mark.parametrize(
    ("stated", "status", "code"),
    [("0", 400, "invalid_request"), ("-1", 400, "invalid_request"), ("1700000000000", 504, "deadline_exceeded"),
     ("soon", 400, "invalid_request")],
)  # fmt: skip
async def test_a_deadline_in_the_past(field: Field, stated: str, status: int, code: str) -> None:
    found = await field.post(orjson.dumps(chat()), **{"X-Kvroute-Deadline-Ms": stated})
    assert found[:2] == (status, code)


async def test_the_same_id_twice_over_http(field: Field) -> None:
    together = await asyncio.gather(*(field.ask("Once?", request_id="twice") for _ in range(4)))
    assert sorted(answer.status for answer in together) == [200, 409, 409, 409]
    assert (await field.ask("Again?", request_id="twice")).status == 409
    assert (await field.runs())["twice-1"] == 1


# As Kafka records


@pytest.mark.parametrize("name", RECORDS)
async def test_a_record_that_is_no_request(field: Field, name: str) -> None:
    value, code = RECORDS[name]
    await field.wire.put(value)
    field.buried += 1
    last = (await field.wire.buried(field.buried))[-1]
    assert (last.code, last.value, last.headers["dlq-stage"]) == (code, value, "media")


@pytest.mark.parametrize("value", [None, b""])
async def test_a_record_without_a_value(field: Field, value: bytes | None) -> None:
    await field.wire.put(value)
    field.buried += 1
    assert (await field.wire.buried(field.buried))[-1].code == "empty"


@pytest.mark.parametrize("name", BODIES_BY_KAFKA)
async def test_a_body_by_kafka(field: Field, name: str) -> None:
    payload, status, code = BODIES_BY_KAFKA[name]
    request_id = field.new_id("raw")
    await field.wire.ask({"request_id": request_id, "body": payload})
    assert await field.wire.error(request_id) == (status, code)


async def test_whoever_waits_for_a_bad_record_is_told(field: Field) -> None:
    request_id = field.new_id("told")
    await field.wire.ask({"request_id": request_id, "body": "hello"})
    field.buried += 1
    assert await field.wire.error(request_id) == (400, "invalid_message")
    request_id = field.new_id("told")
    text = '{"request_id":"%s","reply_to":"%s","body":{"model":"%s","messages":[{"role":"user","content":"\\ud800"}]}}'
    await field.wire.put((text % (request_id, ANSWERS, MODEL.name)).encode())
    field.buried += 1
    assert await field.wire.error(request_id) == (400, "not_json")


async def test_nul_by_kafka(field: Field) -> None:
    request_id = field.new_id("nul")
    await field.wire.ask({"request_id": request_id, "body": chat(messages=[{"role": "user", "content": "a\0b"}])})
    assert (await field.wire.final(request_id)).get("error") is None


async def test_a_deadline_in_the_past_by_kafka(field: Field) -> None:
    for stated in (1, -5, 0, 1_700_000_000_000):
        request_id = field.new_id("late")
        await field.wire.ask({"request_id": request_id, "body": chat(), "deadline_ms": stated})
        assert await field.wire.error(request_id) == (504, "deadline_exceeded")


async def test_the_same_record_twice_runs_once(field: Field) -> None:
    request_id = field.new_id("twice-raw")
    for _ in range(3):
        await field.wire.ask({"request_id": request_id, "body": chat()})
    assert (await field.wire.final(request_id)).get("error") is None
    assert (await field.row(request_id)).status == "finished"
    assert (await field.runs())[f"{request_id}-1"] == 1
    pieces = field.wire.answers[request_id]
    assert {(piece["attempt"], piece["index"]) for piece in pieces if piece["final"]} == {(1, pieces[0]["index"])}


async def test_a_reply_to_header_writes_nowhere(field: Field) -> None:
    """FastStream would answer into the topic a record's reply_to header names; no stage does."""
    victim = "kvroute.workers.v1"
    before = await field.wire.ends(victim, 1)
    request_id = field.new_id("header")
    outside = field.wire.outside(victim).encode()
    headers = {"reply_to": outside, "reply-to": outside, "correlation_id": b"x"}
    await field.wire.ask({"request_id": request_id, "body": chat()}, **headers)
    assert (await field.wire.final(request_id)).get("error") is None
    assert await field.wire.ends(victim, 1) == before


@pytest.mark.parametrize(
    "reply_to",
    [
        "kvroute.decisions.v1",
        "kvroute.workers.v1",
        "kvroute.responses.",
        "kvroute.responses.../x",
        "__consumer_offsets",
    ],
)
async def test_reply_to_that_names_a_system_topic(field: Field, reply_to: str) -> None:
    await field.wire.ask({"request_id": field.new_id("system"), "reply_to": reply_to, "body": chat()})
    field.buried += 1
    assert (await field.wire.buried(field.buried))[-1].code == "invalid_message"


async def test_reply_to_that_does_not_exist(field: Field) -> None:
    """It runs, is audited, and nobody is told."""
    request_id = field.new_id("nowhere")
    await field.wire.ask({"request_id": request_id, "reply_to": "kvroute.responses.nowhere.v1", "body": chat()})
    assert (await field.row(request_id)).status is not None


# Elsewhere


@pytest.mark.parametrize(
    ("topic", "stages"),
    [("media-resolved", ["layout"]), ("expanded", ["router"]), ("decisions", ["audit"]), ("lifecycle", ["audit"]),
     ("work.w1", ["agent"]), ("responses.gateway-1", ["gateway"]), ("kv-events", []), ("workers", []),
     ("heartbeats", []), ("control", [])],
)  # fmt: skip
async def test_garbage_between_the_stages(field: Field, topic: str, stages: list[str]) -> None:
    """Groups bury it, projections count it and go on."""
    before = {name: count for name, count in (await field.skipped(topic)).items() if count}
    for value in GARBAGE:
        await field.wire.put(value, topic=f"kvroute.{topic}.v1", schema=b"odd.v99", traceparent=b"\xff")
    field.buried += len(GARBAGE) * len(stages)
    await field.wire.buried(field.buried)
    assert {letter.headers["dlq-stage"] for letter in field.wire.dead[-len(GARBAGE) :]} >= set(stages)
    if topic in ("kv-events", "workers", "heartbeats", "control"):
        await asyncio.sleep(1)
        after = await field.skipped(topic)
        assert any(count >= before.get(name, 0) + len(GARBAGE) - 1 for name, count in after.items()), after


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_frees_the_engine(field: Field, stream: bool) -> None:
    request_id = field.new_id("gone")
    payload = body(MODEL.name, "Go on and on.", stream=stream) | {"max_tokens": 20_000}
    url = f"{field.fleet.gateway_url}/v1/chat/completions"
    asking = asyncio.ensure_future(
        field.http.post(url, json=payload, headers={"X-Request-Id": request_id}),
    )
    while not (await field.runs())[f"{request_id}-1"]:  # noqa: ASYNC110 - another process runs it
        await asyncio.sleep(0.05)
    if stream:
        (await asking).close()
    else:
        asking.cancel()
    assert (await field.row(request_id)).status == "cancelled"
    async with field.http.get(f"{field.fleet.engine_urls['w1']}/metrics") as metrics:
        running = [line for line in (await metrics.text()).splitlines() if line.startswith("vllm:num_requests_running")]
    assert running
    assert all(line.endswith(" 0.0") for line in running)


async def test_two_tenants_with_one_id_and_one_picture(field: Field) -> None:
    """Two requests, two identities: one tenant can't learn from the cache what another has sent."""
    cached = []
    for tenant in ("one", "two"):
        payload = body(MODEL.name, "What is it?", (picture(7),), system=SYSTEM)
        await field.wire.ask({"request_id": "shared", "tenant": tenant, "body": payload})
        await eventually(lambda tenant=tenant: any(p["tenant"] == tenant for p in field.wire.answers["shared"]))
        (answer,) = [piece for piece in field.wire.answers["shared"] if piece["tenant"] == tenant]
        usage = orjson.loads(answer["chunk"])["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert cached[-1] < usage["prompt_tokens"] - 48  # the picture's 48 tokens are never served from the other's
    runs = await field.runs()
    assert (runs["one/shared-1"], runs["two/shared-1"]) == (1, 1)


async def test_memory_stays_flat(field: Field) -> None:
    """The same rubbish again and again: what it takes once may stay, what grows with it may not."""
    most = 15 << 20
    large = orjson.dumps(chat(messages=[{"role": "user", "content": "x"}], more="y" * most))[:most]
    image = orjson.dumps(body(MODEL.name, "x", (data_uri(b"\x00" * (6 << 20)),)))

    async def round_of_rubbish() -> None:
        await asyncio.gather(
            *(field.post(large) for _ in range(2)),
            *(field.post(image) for _ in range(2)),
            *(field.post(data) for data, _, _ in BODIES.values()),
        )

    for _ in range(2):
        await round_of_rubbish()
    before = field.resident()
    for _ in range(4):
        await round_of_rubbish()
    grown = {name: (size - before[name]) >> 20 for name, size in field.resident().items() if name in before}
    assert {name: size for name, size in grown.items() if size > 150} == {}


async def test_a_private_address_is_refused_by_default(field: Field) -> None:
    """The media stage is replaced by one with the fence as it is by default."""
    await field.fleet.end("media-1")
    await field.fleet.stage("media", 2, KVROUTE_MEDIA_ALLOW_PRIVATE="false")
    await field.fleet.ready("media-2")
    for url in (
        f"{field.site.url}/good.jpg", "http://localhost/x.png", "http://[::1]/x.png", "http://10.0.0.1/x.png",
        "http://169.254.169.254/latest/meta-data", "http://2130706433/x.png", "http://0x7f.0.0.1/x.png",
        "http://[::ffff:127.0.0.1]/x.png", "http://127.1/x.png",
    ):  # fmt: skip
        answer = await field.ask("What is it?", (url,))
        assert answer.status == 400, (url, answer)
        assert '"forbidden_url"' in answer.text
    raw = field.new_id("private-raw")
    await field.wire.ask({"request_id": raw, "body": body(MODEL.name, "x", ("http://127.0.0.1/x.png",))})
    assert await field.wire.error(raw) == (400, "forbidden_url")


async def test_nothing_is_lost_and_nothing_loops(field: Field) -> None:
    """Every stage has handled everything, and goes on handling nothing."""
    for _ in range(100):
        if not any((lags := await field.lags()).values()):
            break
        await asyncio.sleep(0.1)
    assert {name: lag for name, lag in lags.items() if lag} == {}
    # The audit stage reads at leisure: its last facts may come after a lag of 0 was seen. A loop never stands still.
    before: dict[str, float] = {}
    for _ in range(10):
        handled = await field.handled()
        if handled == before:
            break
        before = handled
        await asyncio.sleep(2)
    assert handled == before
    late = {name: f"{lag * 1000:.0f} ms" for name, lag in field.loop_lag.items() if lag > LOOP_LAG_SECONDS}
    if late:
        warnings.warn(f"event loops were late (bound 250 ms on an idle machine): {late}", stacklevel=1)
