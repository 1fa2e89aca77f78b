"""What the router sees in a file, without a worker being asked."""

from __future__ import annotations

import io
from pathlib import Path

import orjson
import pytest
from PIL import Image

from services.cli import exits
from services.cli.chat import media_url
from services.cli.laid_out import Run, line_of
from services.kv.identity import url_identity

TESTS = Path(__file__).parents[2]
MODELS = TESTS / "models"
VIDEOS = TESTS / "golden/video_files"


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    file = tmp_path / "a.png"
    Image.new("RGB", (56, 56), "red").save(file)
    return file


def asked(kvroute, *options):
    ran = kvroute("inspect", *map(str, options), "--json")
    assert ran.code == exits.DONE, ran.err
    return orjson.loads(ran.out)


def test_an_image_with_its_layout(kvroute, picture):
    found = asked(kvroute, picture, "--model-dir", MODELS / "qwen2.5-vl")
    assert (found["kind"], found["format"], found["mode"], found["width"], found["height"]) == (
        "image", "PNG", "RGB", 56, 56,
    )  # fmt: skip
    assert (found["exact"], found["layout"]["length"]) == (True, 4)
    assert [(run["count"], run["text"]) for run in found["layout"]["runs"]] == [(4, "<|image_pad|>")]
    assert found["identities"]["mode"] == "url"


def test_the_engine_is_told_what_the_mode_in_force_says(kvroute, picture, monkeypatch):
    uri = media_url(str(picture))
    identities = asked(kvroute, picture)["identities"]
    assert identities["url"] == f"{url_identity(uri):016x}", "as `kvroute send` would post the file"
    assert identities["told_the_engine"] == identities["url"] + "0" * 48
    assert identities["content"] not in (None, identities["url"])
    monkeypatch.setenv("KVROUTE_IDENTITY_BY_MODEL", "qwen2.5-vl=content")
    identities = asked(kvroute, picture, "--model", "qwen2.5-vl")["identities"]
    assert (identities["mode"], identities["told_the_engine"]) == ("content", identities["content"] + "0" * 48)
    monkeypatch.setenv("KVROUTE_IDENTITY", "validated")
    identities = asked(kvroute, picture)["identities"]
    assert (identities["mode"], identities["told_the_engine"]) == ("validated", None), "the server was not asked"


def test_people_read_which_mode_it_is(kvroute, picture):
    assert "told the engine in url mode" in kvroute("inspect", str(picture), "--table").out


def test_the_model_of_kvroute_up_is_known_by_its_name(kvroute, picture, monkeypatch, tmp_path):
    assert asked(kvroute, picture, "--model", "qwen2.5-vl")["layout"]["length"] == 4
    monkeypatch.setenv("KVROUTE_MODELS", f"qwen2.5-vl={tmp_path}")
    ran = kvroute("inspect", str(picture), "--model", "qwen2.5-vl")
    assert ran.code != exits.DONE, "a folder that was named goes first"


def test_an_image_needs_no_model(kvroute, picture):
    found = asked(kvroute, picture)
    assert (found["exact"], found["layout"]) == (True, None)


def test_a_data_uri_has_an_identity_by_its_text(kvroute, picture):
    import base64

    uri = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    found = asked(kvroute, uri)
    assert found["identities"]["url"] == f"{url_identity(uri):016x}"


def test_a_video_with_its_frames_and_stamps(kvroute):
    found = asked(kvroute, VIDEOS / "ntsc.webm", "--model-dir", MODELS / "qwen3-vl")
    assert (found["kind"], found["format"], found["total_frames"], found["frame_indices"]) == (
        "video", "WEBM", 30, [0, 10, 19, 29],
    )  # fmt: skip
    assert found["timestamps"] == [index / found["fps"] for index in (0, 10, 19, 29)]
    assert (found["sampling"], found["layout"]["variant"]) == ("qwen3_vl/fps=2", "qwen3_vl/transformers-5.15")
    assert sum(run["count"] for run in found["layout"]["runs"]) == found["layout"]["length"]
    identities = found["identities"]
    assert (identities["mode"], identities["url"]) == ("content", None), "a video is always told apart by its content"
    assert identities["told_the_engine"] == identities["content"] + "0" * 48


@pytest.mark.parametrize(
    ("file", "model", "reason"),
    [
        ("corrupt_middle.webm", "qwen3-vl", "decode_failed"),
        ("one_frame.webm", "qwen3-vl", "video_metadata_ambiguous"),
        ("vp9.webm", "llava-1.5", "unsupported_media"),
        ("vp9.webm", None, "unsupported_model"),
    ],
)
def test_why_a_video_is_not_exact(kvroute, file, model, reason):
    found = asked(kvroute, VIDEOS / file, *(["--model-dir", MODELS / model] if model else []))
    assert (found["exact"], found["reason"]) == (False, reason)
    assert found["detail"]
    assert found["identities"]["content"] is None


def test_a_sheet_shows_what_was_hashed(kvroute, tmp_path):
    sheet = tmp_path / "sheet.png"
    asked(kvroute, VIDEOS / "h264.mp4", "--model-dir", MODELS / "qwen3-vl", "--sheet", sheet)
    with Image.open(io.BytesIO(sheet.read_bytes())) as opened:
        assert opened.width > 2 * 64
        assert opened.height > 2 * 48


def test_no_sheet_of_what_was_not_hashed(kvroute, tmp_path):
    ran = kvroute("inspect", str(VIDEOS / "half.mp4"), "--model-dir", str(MODELS / "qwen3-vl"), "--sheet", "s.png")
    assert ran.code == exits.FAILED
    assert "nothing was hashed" in ran.err


def test_a_url_meets_the_fence(kvroute):
    ran = kvroute("inspect", "http://127.0.0.1/a.png")
    assert ran.code == exits.FAILED
    assert "only public addresses" in ran.err


def test_what_is_no_file(kvroute):
    assert "neither a URL" in kvroute("inspect", "nowhere.png").err


def test_an_unknown_model_says_where_its_folder_is_named(kvroute, picture):
    said = kvroute("inspect", str(picture), "--model", "m").err
    assert "KVROUTE_MODELS=m=FOLDER" in said
    assert "--model-dir" in said


def test_a_table_for_people(kvroute, picture):
    out = kvroute("inspect", str(picture), "--model-dir", str(MODELS / "qwen2.5-vl"), "--table").out
    assert "<|image_pad|>×4" in out
    assert "yes, once workers have proven it" in out


def test_a_line_of_many_runs_is_cut():
    runs = [Run(1, 1, "a"), Run(2, 3, "b")] * 40
    assert line_of(runs[:2]) == "a b×3"
    assert line_of(runs).endswith("… and 20 more runs")
