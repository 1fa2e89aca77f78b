"""Logs: one format for ours and the libraries', and no secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from services.runtime.logs import OnceInAWhile, get_logger, redact, setup_logging
from services.runtime.settings import Settings


@pytest.fixture
def fresh_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("at 12:30 a?b", "at 12:30 a?b"),
        ("https://h/p.png?sig=s&x=1#f tail", "https://h/p.png?… tail"),
        ("'https://h/p?a=b' and HTTP://H/?q", "'https://h/p?…' and HTTP://H/?…"),
        ("postgresql+asyncpg://u:p@h/db", "postgresql+asyncpg://…@h/db"),
        ("DATA:image/png;base64,AAAA+/= x", "data:image/png,… x"),
        ("data:,hello", "data:,…"),
        ("https://h/path", "https://h/path"),
    ],
)
def test_queries_user_info_and_inline_data_are_left_out(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_long_texts_are_cut() -> None:
    assert len(redact("x" * 100_000)) < 5000
    assert redact("x" * 100_000).endswith("(100000 characters)")


@pytest.mark.usefixtures("fresh_logging")
def test_json_lines_of_ours_and_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(Settings(log_format="json"))
    get_logger("media").bind(stage="media").warning(
        "fetch failed", url="https://h/a?sig=s", error=ValueError("http://h/?x")
    )
    logging.getLogger("some.library").warning("went to %s", "https://h/a?token=t")
    logging.getLogger("aiokafka.consumer").info("chatter")
    try:
        raise ValueError("https://h/?secret")
    except ValueError:
        get_logger("media").exception("broke")
    ours, theirs, broken = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert ours["event"] == "fetch failed"
    assert (ours["stage"], ours["level"]) == ("media", "warning")
    assert ours["url"] == "https://h/a?…"
    assert ours["error"] == "ValueError: http://h/?…"
    assert theirs["event"] == "went to https://h/a?…"
    assert "secret" not in broken["exception"]


def test_a_library_says_the_same_thing_once_in_a_while() -> None:
    calm = OnceInAWhile(("aiokafka",), seconds=10)

    def says(text: str, at: float, name: str = "aiokafka.conn") -> str | None:
        record = logging.LogRecord(name, logging.ERROR, "", 0, text, ("x",), None)
        record.created = at
        return record.getMessage() if calm.filter(record) else None

    assert says("no answer from %s", 0.0) == "no answer from x"
    assert says("no answer from %s", 1.0) is None
    assert says("lost %s", 1.0) == "lost x"
    assert says("no answer from %s", 9.9) is None
    assert says("no answer from %s", 10.1) == "no answer from x [and 2 more like this]"
    assert says("ours %s", 10.1, "kvroute.media") == says("ours %s", 10.2, "kvroute.media") == "ours x"


@pytest.mark.usefixtures("fresh_logging")
def test_the_level_holds(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(Settings(log_level="error", log_format="console"))
    get_logger("x").warning("quiet")
    get_logger("x").error("loud")
    out = capsys.readouterr().err
    assert "quiet" not in out
    assert "loud" in out
