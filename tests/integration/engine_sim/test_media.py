"""Images and videos over HTTP: where they come from, what they are called, what is refused."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from PIL import Image

from tests.integration.engine_sim.conftest import Answer, Client, StartEngine
from tests.integration.engine_sim.replay import replayed
from tests.unit.engine_sim.recorded import Renamed

PAD = 151655
VIDEO_PAD = 151656
VIDEO = (Path(__file__).parents[2] / "golden/video_files/vp9.webm").read_bytes()


def png(width: int = 112, height: int = 56, colour: str = "red", form: str = "PNG", orientation: int = 1) -> bytes:
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (width, height), colour).save(buffer, form, exif=exif)
    return buffer.getvalue()


def data_uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(url: str | None, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


async def ask(client: Client, *parts: dict[str, Any], **more: Any) -> Answer:
    content = [*parts, {"type": "text", "text": "what is this?"}]
    return await client.chat(content, return_token_ids=True, **more)


async def tokens(client: Client, *parts: dict[str, Any]) -> list[int]:
    body = {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "what is this?"}]}]}
    answer = await client.post("/tokenize", body)
    assert answer.status == 200, answer.body
    return list(answer.body["tokens"])


def cached(answer: Answer) -> int:
    assert answer.status == 200, answer.body
    return int(answer.body["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture
async def site() -> AsyncIterator[str]:
    """A web server with an image, a page, and failures."""

    async def serve(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name.isdigit():
            return web.Response(status=int(name))
        return web.Response(body=png() if name == "image" else b"<html>hello</html>")

    app = web.Application()
    app.router.add_get("/{name}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_an_image_takes_the_tokens_of_its_size_after_exif(client: Client) -> None:
    plain = await tokens(client, image(data_uri(png(112, 56))))
    turned = await tokens(client, image(data_uri(png(112, 280, form="JPEG", orientation=6), "image/jpeg")))
    assert plain.count(PAD) == 4 * 2
    assert turned.count(PAD) == 4 * 10


async def test_the_same_bytes_are_one_image_wherever_they_come_from(client: Client, site: str, tmp_path: Path) -> None:
    await ask(client, image(data_uri(png())))
    assert cached(await ask(client, image(f"{site}/image"))) > 0
    assert cached(await ask(client, image(data_uri(png(colour="blue"))))) == 0


async def test_a_uuid_wins_over_the_content(client: Client) -> None:
    large, small = image(data_uri(png(560, 560)), uuid="u"), image(data_uri(png(56, 56)), uuid="u")
    first = await ask(client, large)
    assert cached(await ask(client, small)) == (first.body["usage"]["prompt_tokens"] - 1) // 16 * 16
    assert await tokens(client, small) == await tokens(client, large)


async def test_a_uuid_stands_in_the_events_verbatim(client: Client) -> None:
    uuid = f"{0xABCDEF:016x}" + "0" * 48
    await ask(client, image(data_uri(png()), uuid=uuid))
    ((_, payload),) = await replayed(client.engine.replay_endpoint, 0)
    ((event,), _) = Renamed().batch(payload)
    assert event["extra_keys"][0] == [["medium 0", 15]]
    assert uuid.encode() in payload


async def test_a_uuid_alone_needs_the_cache_and_a_second_try_with_data_fills_it(client: Client) -> None:
    missed = await ask(client, image(data_uri(png())), image(None, uuid="u"))
    assert (missed.status, missed.message) == (400, "Cache miss for image at index 1 but data is not provided.")
    await ask(client, image(data_uri(png()), uuid="u"))
    assert cached(await ask(client, image(None, uuid="u"))) > 0


async def test_a_placeholder_typed_as_text_stays_a_token(client: Client) -> None:
    typed = {"type": "text", "text": "<|image_pad|> is a placeholder"}
    assert (await tokens(client, typed)).count(PAD) == 1
    both = await tokens(client, image(data_uri(png(56, 56))), typed)
    assert both.count(PAD) == 4 + 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (data_uri(b""), "Failed to load image"),
        (data_uri(b"<html>"), "Failed to load image"),
        (data_uri(png(form="JPEG")[:300], "image/jpeg"), "Failed to load image"),
        ("data:image/png;base64,A*A", "base64 is broken"),
        ("data:image/png;base64", "missing ',' separator"),
        ("ftp://example.com/a.png", "must be either a HTTP, data or file URL"),
        (data_uri(png(3000, 10)), "ratio"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_bad_images_are_the_clients_fault(client: Client, data: str, message: str) -> None:
    answer = await ask(client, image(data))
    assert (answer.status, answer.body["error"]["type"]) == (400, "BadRequestError")
    assert message in answer.message
    assert (await client.get("/sim/requests")).body["total"] == 0


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("page", 400, "Failed to load image"),
        ("404", 422, "HTTP 404 error"),
        ("503", 500, "503"),
        ("429", 500, "429"),
    ],
)
async def test_what_a_site_answers(client: Client, site: str, path: str, status: int, message: str) -> None:
    answer = await ask(client, image(f"{site}/{path}"))
    assert (answer.status, message in answer.message) == (status, True)


async def test_a_site_that_is_not_there_is_no_fault_of_the_clients(client: Client) -> None:
    assert (await ask(client, image("http://127.0.0.1:1/image"))).status == 500


async def test_files_need_an_allowed_folder(start: StartEngine, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "a.png").write_bytes(png())
    (tmp_path / "b.png").write_bytes(png())
    closed, opened = await start(), await start(allowed_local_media_path=tmp_path / "inside")
    assert (await ask(closed, image(f"file://{tmp_path}/inside/a.png"))).status == 500
    assert (await ask(opened, image(f"file://{tmp_path}/inside/a.png"))).status == 200
    for outside in ("b.png", "inside/../b.png"):
        refused = await ask(opened, image(f"file://{tmp_path}/{outside}"))
        assert (refused.status, "must be a subpath" in refused.message) == (400, True)


async def test_more_images_than_allowed_are_refused(start: StartEngine) -> None:
    client = await start(limit_mm_per_prompt={"image": 1, "video": 0})
    two = await ask(client, image(data_uri(png())), image(data_uri(png())))
    assert (two.status, two.message) == (400, "At most 1 image(s) may be provided in one prompt.")


async def test_a_video_is_sampled_by_the_models_loader(client: Client) -> None:
    """20 frames at 10 fps and 48x64: four frames are two pairs of 2x2 tokens."""
    part = {"type": "video_url", "video_url": {"url": data_uri(VIDEO, "video/webm")}}
    assert (await tokens(client, part)).count(VIDEO_PAD) == 2 * (2 * 2)


async def test_a_requests_own_kwargs_need_trust(start: StartEngine) -> None:
    trusting, other = await start(trust_request_mm_kwargs=True), await start()
    kwargs: dict[str, Any] = {"mm_processor_kwargs": {"max_pixels": 56 * 56}}
    refused = await ask(other, image(data_uri(png(560, 560))), **kwargs)
    assert (refused.status, refused.body["error"]["param"]) == (400, "mm_processor_kwargs")
    taken = await ask(trusting, image(data_uri(png(560, 560))), **kwargs)
    assert taken.body["prompt_token_ids"].count(PAD) == 4
    unknown = await ask(trusting, image(data_uri(png())), mm_processor_kwargs={"do_resize": False})
    assert (unknown.status, unknown.body["error"]["param"]) == (400, "mm_processor_kwargs")


async def test_frames_sampled_by_the_sender_are_taken_as_they_are(start: StartEngine) -> None:
    client = await start(trust_request_mm_kwargs=True)
    frames = ",".join(base64.b64encode(png(56, 56)).decode() for _ in range(6))
    options = {"num_frames": 6, "fps": 10.0, "frames_indices": [0, 2, 4, 6, 8, 10], "do_sample_frames": False}
    part = {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{frames}"}}
    answer = await ask(client, part, media_io_kwargs={"video": options})
    assert answer.body["prompt_token_ids"].count(VIDEO_PAD) == 3 * 4


async def test_the_servers_own_kwargs_change_the_names_of_their_kind_only(start: StartEngine) -> None:
    client = await start(media_io_kwargs={"image": {"rgba_background_color": [0, 0, 0]}})
    video = {"type": "video_url", "video_url": {"url": data_uri(VIDEO, "video/webm")}, "uuid": "v" * 64}
    rendered = await client.post("/v1/chat/completions/render", {"messages": [
        {"role": "user", "content": [image(data_uri(png()), uuid="i" * 64), video]}
    ], "mm_payload": "none"})  # fmt: skip
    names = rendered.body["features"]["mm_hashes"]
    assert names["video"] == ["v" * 64]
    assert len(names["image"][0]) == 64
    assert names["image"] != ["i" * 64]


async def test_the_servers_own_kwargs_sample_videos(start: StartEngine) -> None:
    client = await start(media_io_kwargs={"video": {"fps": 8.0}})
    part = {"type": "video_url", "video_url": {"url": data_uri(VIDEO, "video/webm")}}
    assert (await tokens(client, part)).count(VIDEO_PAD) == 8 * (2 * 2)
