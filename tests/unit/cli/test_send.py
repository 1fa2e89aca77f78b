"""send and route: what is sent, what is said of the answer."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli import exits
from services.cli import send as send_module
from services.cli.chat import BadMedium, body_of, gateway_url, headers_of, media_url
from services.cli.gateway_client import GatewayRefused
from services.runtime.settings import Settings

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(send_module, "AUDIT_SECONDS", 0.2)


class TestSend:
    def test_the_answer_its_worker_and_its_overlap(self, kvroute, store):
        found = kvroute("send", "What", "is", "this?", "--request-id", "hit").value
        assert found["answer"] == "A red lamp."
        assert (found["worker"], found["attempt"], found["request_id"]) == ("w1", 1, "hit")
        assert found["overlap"] | {"overlap_confirmed": 3, "total_blocks": 8} == found["overlap"]
        assert found["realised_cached_tokens"] == 48
        ((path, body, headers),) = kvroute.gateway.asked
        assert body["messages"] == [{"role": "user", "content": "What is this?"}]
        assert (path, body["model"], headers["X-Request-Id"]) == ("/v1/chat/completions", "qwen3-vl", "hit")

    def test_for_people(self, kvroute, store):
        ran = kvroute("send", "What is this?", "--request-id", "hit", "--table")
        assert ran.out == "A red lamp.\n"
        assert "worker w1 · overlap 3/8 blocks (exact) · predicted 48 cached tokens · realised 48" in ran.err
        assert "kvroute explain hit" in ran.err

    def test_without_an_audit_store_the_answer_still_counts(self, kvroute, monkeypatch):
        monkeypatch.setenv("KVROUTE_DATABASE_URL", "postgresql://127.0.0.1:1/d")
        found = kvroute("send", "Hello").value
        assert (found["answer"], found["overlap"], found["realised_cached_tokens"]) == ("A red lamp.", None, 48)
        assert "no decision in the audit store" in kvroute("send", "Hello", "--table").err

    def test_a_store_that_knows_nothing_of_the_request_is_not_waited_for_long(self, kvroute, store, monkeypatch):
        monkeypatch.setattr(send_module, "AUDIT_SECONDS", 3600)
        monkeypatch.setattr(send_module, "UNKNOWN_SECONDS", 0.0)
        assert kvroute("send", "Hello", "--request-id", "nobody").value["overlap"] is None

    def test_the_store_need_not_be_asked(self, kvroute, store):
        assert kvroute("send", "Hello", "--request-id", "hit", "--no-audit").value["overlap"] is None
        assert "audit store" not in kvroute("send", "Hello", "--no-audit", "--table").err

    def test_no_store_costs_no_sqlalchemy(self, tmp_path):
        code = (
            "import sys; from tests.fakes.cli import CommandLine; assert CommandLine()('send', 'Hello').code == 0; "
            "assert 'sqlalchemy' not in sys.modules"
        )
        environment = os.environ | {"KVROUTE_DATA_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment)

    def test_why_a_view_is_not_exact_is_said(self, kvroute, store):
        ran = kvroute("send", "What is this?", "--request-id", "short", "--table")
        assert "blocks (text_prefix: fetch_failed)" in ran.err

    def test_streaming_prints_pieces(self, kvroute, store):
        ran = kvroute("send", "Hello", "--stream", "--table", "--request-id", "hit")
        assert ran.out == "A red lamp.\n"
        body = kvroute.gateway.asked[0][1]
        assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
        assert kvroute("send", "Hello", "--stream", "--json").value["answer"] == "A red lamp."

    def test_markup_in_an_answer_is_text(self, kvroute):
        kvroute.gateway.pieces = ["[red]not red[/red]"]
        assert kvroute("send", "Hello", "--table").out == "[red]not red[/red]\n"

    def test_images_come_first_files_inline(self, kvroute, tmp_path):
        (tmp_path / "a.png").write_bytes(b"PNG")
        kvroute("send", "Which?", "--image", "a.png", "--image", "https://h/b.png", "--system", "Be short.")
        system, user = kvroute.gateway.asked[0][1]["messages"]
        assert system == {"role": "system", "content": "Be short."}
        urls = [part["image_url"]["url"] for part in user["content"][:2]]
        assert urls == ["data:image/png;base64," + base64.b64encode(b"PNG").decode(), "https://h/b.png"]
        assert user["content"][2] == {"type": "text", "text": "Which?"}

    def test_videos_come_after_images(self, kvroute, tmp_path):
        (tmp_path / "a.mp4").write_bytes(b"MP4")
        kvroute("send", "What?", "--video", "a.mp4", "--image", "https://h/b.png")
        image, video, text = kvroute.gateway.asked[0][1]["messages"][0]["content"]
        assert image == {"type": "image_url", "image_url": {"url": "https://h/b.png"}}
        inline = "data:video/mp4;base64," + base64.b64encode(b"MP4").decode()
        assert video == {"type": "video_url", "video_url": {"url": inline}}
        assert text["text"] == "What?"

    def test_a_video_that_is_no_file(self, kvroute):
        assert "--video nowhere.mp4 is neither a URL" in kvroute("send", "x", "--video", "nowhere.mp4").err

    def test_an_image_that_is_no_file(self, kvroute):
        ran = kvroute("send", "x", "--image", "nowhere.png")
        assert ran.code == exits.FAILED
        assert "neither a URL" in ran.err
        assert kvroute.gateway.asked == []

    def test_options_become_headers(self, kvroute):
        kvroute(
            "send", "x", "--session", "s1", "--salt", "blue", "--identity", "content", "--deadline", "1.5",
            "--api-key", "k", "--url", "gw:8000", "--max-tokens", "9",
        )  # fmt: skip
        _, body, headers = kvroute.gateway.asked[0]
        assert headers.pop("X-Request-Id").startswith("cli-")
        assert headers == {
            "X-Session-Id": "s1", "X-Kvroute-Cache-Salt": "blue", "X-Kvroute-Identity": "content",
            "X-Kvroute-Deadline-Ms": "1500",
        }  # fmt: skip
        assert (kvroute.gateway.url, kvroute.gateway.api_key, body["max_tokens"]) == ("http://gw:8000", "k", 9)

    def test_a_refusal_is_said_in_one_line(self, kvroute):
        kvroute.gateway.refusal = GatewayRefused(429, "too many requests in flight", "busy")
        ran = kvroute("send", "x")
        assert (ran.code, ran.out) == (exits.FAILED, "")
        assert ran.err == "kvroute: the gateway answered 429: too many requests in flight (busy)\n"

    def test_a_code_that_the_message_names_is_not_said_twice(self, kvroute):
        kvroute.gateway.refusal = GatewayRefused(502, "there is no other (engine_500: boom)", "engine_500")
        assert kvroute("send", "x").err == "kvroute: the gateway answered 502: there is no other (engine_500: boom)\n"

    def test_an_unknown_model_is_told_which_there_are(self, kvroute):
        kvroute.gateway.refusal = GatewayRefused(404, "The model `m` does not exist.", "model_not_found")
        assert kvroute("send", "x", "--model", "m").err == (
            "kvroute: the gateway answered 404: The model `m` does not exist. The gateway serves qwen3-vl "
            "(model_not_found)\n"
        )

    def test_no_model_yet(self, kvroute):
        kvroute.gateway.model_names = []
        assert "kvroute worker list" in kvroute("send", "x").err

    def test_no_text_is_wrong_usage(self, kvroute):
        assert kvroute("send").code == exits.USAGE


class TestRoute:
    ROUTE = {
        "worker_id": "w1", "overlap_blocks": 3, "total_blocks": 8, "mode": "exact", "policy": "kv",
        "candidates": [{"worker_id": "w1", "dp_rank": 0, "overlap_blocks": 3, "overlap_predicted": 3, "cost": 5.0}],
    }  # fmt: skip

    def test_where_a_request_would_go(self, kvroute):
        kvroute.gateway.route = self.ROUTE
        assert kvroute("route", "Hello").value == self.ROUTE
        out = kvroute("route", "Hello", "--table").out
        assert "w1: overlap 3/8 blocks, exact, policy kv" in out
        assert "w1/0" in out
        assert kvroute.gateway.asked[0][0] == "/v1/route"

    def test_booking_and_its_end(self, kvroute):
        kvroute("route", "Hello", "--book", "--request-id", "job-7")
        assert kvroute("route", "--done", "job/7").value == {"request_id": "job/7", "done": True}
        assert [path for path, _, _ in kvroute.gateway.asked] == ["/v1/route?book=true", "/v1/route/job%2F7/done"]

    def test_an_id_that_nothing_was_booked_under_is_said(self, kvroute, store, monkeypatch):
        monkeypatch.setattr(send_module, "UNKNOWN_SECONDS", 0.0)
        ran = kvroute("route", "--done", "zzz")
        assert ran.code == exits.FAILED
        assert "no request 'zzz' is known to the audit store" in ran.err
        assert kvroute("route", "--done", "asked").code == exits.DONE
        assert [path for path, _, _ in kvroute.gateway.asked] == ["/v1/route/zzz/done", "/v1/route/asked/done"]

    @pytest.mark.parametrize("arguments", [(), ("Hello", "--done", "x")])
    def test_a_text_or_done(self, kvroute, arguments):
        assert kvroute("route", *arguments).code == exits.USAGE


def test_a_large_file_is_not_sent_inline(tmp_path, monkeypatch):
    monkeypatch.setattr("services.cli.chat.LARGEST_FILE", 3)
    (tmp_path / "a.png").write_bytes(b"1234")
    with pytest.raises(BadMedium, match="give its URL"):
        media_url(str(tmp_path / "a.png"))


def test_data_uris_are_sent_as_they_are():
    assert media_url("data:image/png;base64,AA") == "data:image/png;base64,AA"


def test_what_is_not_given_is_not_sent():
    messages = [{"role": "user", "content": "x"}]
    assert body_of("m", "x", [], [], "", max_tokens=None) == {"model": "m", "messages": messages}
    assert set(headers_of()) == {"X-Request-Id"}


@pytest.mark.parametrize(
    ("host", "given", "url"),
    [
        ("127.0.0.1", "", "http://127.0.0.1:8000"),
        ("0.0.0.0", "", "http://127.0.0.1:8000"),
        ("::", "", "http://[::1]:8000"),
        ("h", "other:1", "http://other:1"),
        ("h", "https://other", "https://other"),
    ],
)
def test_where_the_gateway_is(host, given, url):
    assert gateway_url(Settings(gateway_host=host), given) == url
