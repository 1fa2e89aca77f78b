"""Tables for people, JSON for programs, no colour in a pipe."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

import click
import pytest

from services.cli.output import Column, Output, percent, plain, shown
from services.cli.since import since

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@dataclass
class Thing:
    name: str
    at: datetime
    count: int


class Colour(Enum):
    RED = "red"


THINGS = [Thing("[bold]a", NOW, 1), Thing("b", NOW, 20)]
COLUMNS = [Column("name", lambda one: one.name), Column("count", lambda one: one.count, right=True)]


def printed(out: io.StringIO, rows, json=None) -> str:
    with redirect_stdout(out):
        Output(json=json).rows(rows, COLUMNS, title="Things", empty="no things")
    return out.getvalue()


def test_in_a_pipe_rows_are_json_with_all_fields():
    rows = json.loads(printed(io.StringIO(), THINGS))
    assert rows[0] == {"name": "[bold]a", "at": "2026-01-01T12:00:00Z", "count": 1}


def test_on_a_terminal_rows_are_a_table_and_markup_in_cells_is_text(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    text = printed(Terminal(), THINGS)
    assert "[bold]a" in text
    assert "\x1b[" in text


def test_on_a_terminal_json_can_be_asked_for():
    assert json.loads(printed(Terminal(), THINGS, json=True))[1]["count"] == 20


def test_a_table_in_a_pipe_has_no_colour(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    text = printed(io.StringIO(), THINGS, json=False)
    assert "Things" in text
    assert "\x1b" not in text


def test_no_rows_are_an_empty_array_for_programs():
    assert json.loads(printed(io.StringIO(), [])) == []


def test_no_rows_are_a_remark_for_people(capsys):
    assert printed(Terminal(), []) == ""
    assert "no things" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (False, "no"),
        (1234.5, "1,234.5"),
        (2.0, "2"),
        (NOW, "2026-01-01 12:00:00"),
        ("x", "x"),
    ],
)
def test_cells(value, text):
    assert shown(value) == text


def test_rates_are_percent():
    assert percent(0.5) == "50.0 %"
    assert percent(None) == ""


def test_plain_values_are_what_json_knows():
    value = {"colour": Colour.RED, 1: (NOW,), "big": 2**64, "fits": 2**64 - 1, "path": io}
    assert plain(value) | {"path": ""} == {
        "colour": "red", "1": ["2026-01-01T12:00:00Z"], "big": str(2**64), "fits": 2**64 - 1, "path": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", datetime(2026, 1, 1, 11, 58, 30, tzinfo=UTC)),
        ("6h", datetime(2026, 1, 1, 6, tzinfo=UTC)),
        ("1d", datetime(2025, 12, 31, 12, tzinfo=UTC)),
        ("2025-06-01", datetime(2025, 6, 1, tzinfo=UTC)),
        ("2025-06-01T10:00+02:00", datetime(2025, 6, 1, 8, tzinfo=UTC)),
    ],
)
def test_since(text, moment):
    assert since(text, NOW) == moment


def test_since_says_what_it_expects():
    with pytest.raises(click.BadParameter, match="expected a span such as 90s"):
        since("yesterday", NOW)
