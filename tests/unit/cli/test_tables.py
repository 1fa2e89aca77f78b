"""Tables in narrow terminals: what matters least goes first, ids and numbers are never cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from services.audit.explain import Attempt
from services.cli.explained import candidates_table
from services.cli.tables import Column, Dull, fitted

REQUEST = "cli-0123456789abcdef"


def lines(table, width):
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().splitlines()


def headings(table):
    return [column.header for column in table.columns]


COLUMNS = [
    Column("id", lambda row: row["id"], whole=True),
    Column("#", lambda row: row["n"], right=True, rank=1, dull=1),
    Column("model", lambda row: row["model"], rank=1, dull=Dull.SAME),
    Column("note", lambda row: row["note"], rank=2),
    Column("cost", lambda row: row["cost"], right=True, whole=True),
]


def rows(**more):
    row = {"id": REQUEST, "n": 1, "model": "qwen", "note": "a note", "cost": 1234.5}
    return [row | more, row]


def test_where_there_is_room_everything_stands():
    table = fitted(rows(), COLUMNS, 80, title="t")
    assert headings(table) == ["id", "#", "model", "note", "cost"]
    assert table.caption is None


def test_what_says_nothing_goes_first_then_what_matters_least():
    assert headings(fitted(rows(), COLUMNS, 50, title="t")) == ["id", "#", "note", "cost"]
    table = fitted(rows(), COLUMNS, 44, title="t")
    assert headings(table) == ["id", "note", "cost"]
    assert table.caption == "left out for this width: model (qwen), # (1); --json has everything"
    assert headings(fitted(rows(n=2, model="llava"), COLUMNS, 50, title="t")) == ["id", "#", "model", "cost"]


def test_narrow_ones_come_back_where_a_wide_one_made_room():
    columns = [COLUMNS[0], Column("n", lambda row: row["n"], rank=2), Column("wide", lambda row: "x" * 40, rank=1)]
    assert headings(fitted(rows(n=2), columns, 40, title="t")) == ["id", "n"]


@pytest.mark.parametrize("width", range(20, 100, 7))
def test_ids_and_numbers_are_never_cut(width):
    printed = lines(fitted(rows(), COLUMNS, width, title="t"), width)
    assert all(len(line) <= width for line in printed)
    if width >= 40:
        assert sum(REQUEST in line for line in printed) == 2
    assert not any("…" in line for line in printed)
    # Where even an id finds no room on a line it goes on in the next.
    cells = [line.split("│")[1].strip() for line in printed if line.startswith("│")]
    assert "".join(cells).replace("\n", "").count(REQUEST) == 2


def slot(worker="w1", **more):
    row = {
        "worker_id": worker, "dp_rank": 0, "uncertain": False, "chosen": worker == "w1", "overlap_device": 123,
        "overlap_host": 0, "overlap_disk": 0, "overlap_predicted": 123, "vision_tokens": 704, "encoder_tokens": 352,
        "active_prefill_tokens": 0, "active_decode_blocks": 0, "active_requests": 0, "prefill_cost": 1234.25,
        "decode_cost": 250.0, "request_cost": 0.0, "cost": 1484.25,
    }  # fmt: skip
    return row | more


def test_candidates_of_a_prompt_with_media_in_80_columns():
    attempt = Attempt(1, {"total_blocks": 250, "candidate_count": 2}, [slot(), slot("w2")], None)
    table = candidates_table(attempt, 80)
    printed = "\n".join(lines(table, 80))
    assert "1,234.25" in printed
    assert "1,484.25" in printed
    assert "123/250" in printed
    assert "█" not in printed, "no bar is better than half a bar"
    assert not any("in flight" in heading for heading in headings(table)), "nothing is in flight"


def test_load_stays_while_there_is_room_for_it():
    busy = [slot(active_requests=7, active_decode_blocks=40), slot("w2")]
    attempt = Attempt(1, {"total_blocks": 250, "candidate_count": 2}, busy, None)
    assert "in flight:\ndecode blk" in headings(candidates_table(attempt, 120))
    assert "in flight:\nprefill tok" not in headings(candidates_table(attempt, 120))
    assert any("█" in heading for heading in headings(candidates_table(attempt, 160)))


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("columns", ["80", "100", "120"])
def test_commands_cut_nothing(kvroute, monkeypatch, columns):
    monkeypatch.setattr("services.cli.output.PLAIN_WIDTH", int(columns))
    for command in (["audit", "recent"], ["audit", "workers"], ["audit", "models"], ["audit", "fallbacks"],
                    ["explain", "hit"]):  # fmt: skip
        out = kvroute(*command, "--table").out
        assert max(map(len, out.splitlines())) <= int(columns) or command[0] == "explain"
        assert "…" not in out
    recent = kvroute("audit", "recent", "--table").out
    assert all(f" {request} " in recent for request in ("hit", "short", "busy", "asked", "refused"))
    assert ("2026-01-01" not in recent) is (kvroute.now_ms < 1_767_312_000_000)
