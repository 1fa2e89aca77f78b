"""Text the databases take, URLs of databases, view SQL that exists for both."""

from __future__ import annotations

import math
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.audit.database import database_url, describe, open_engine
from services.audit.moments import moment
from services.audit.partitions import day_of, is_partition, partition_name, retention_start, wanted_days
from services.audit.text import escaped, escaped_json, scrubbed
from services.audit.views import VIEWS, create_statements, drop_statements
from services.runtime.errors import ConfigError
from services.runtime.settings import Settings
from tests.fakes.audit_records import NOON_MS


@given(st.text(alphabet=st.characters(), max_size=50))
def test_escaped_text_is_utf_8_without_nul(text):
    assert "\x00" not in escaped(text)
    escaped(text).encode()


def test_nul_and_lone_surrogates_stay_readable():
    assert escaped("a\x00b\ud800c") == "a\\u0000b\\ud800c"


def test_json_values_lose_what_json_does_not_know():
    value = {"a\x00": [math.nan, math.inf, 1.5, True, None, {"b": ("x\x00",)}]}
    assert escaped_json(value) == {"a\\u0000": [None, None, 1.5, True, None, {"b": ["x\\u0000"]}]}


@pytest.mark.parametrize(
    "text", ["see https://u:p@h/x?sig=SECRET now", "data:image/png;base64,SECRET", "s3://b/k?SECRET"]
)
def test_urls_lose_what_may_be_secret(text):
    assert "SECRET" not in scrubbed(text)
    assert "u:p" not in scrubbed(text)


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("sqlite:///x.db", "sqlite+aiosqlite"),
        ("postgresql://u:p@h/d", "postgresql+asyncpg"),
        ("postgres://u:p@h/d", "postgresql+asyncpg"),
        ("postgresql+asyncpg://h/d", "postgresql+asyncpg"),
    ],
)
def test_urls_get_the_asynchronous_driver(given, driver):
    assert database_url(Settings(database_url=given)).drivername == driver


@pytest.mark.parametrize(("given", "found"), [("nonsense", "no database URL"), ("mysql://h/d", "names 'mysql'")])
def test_a_wrong_url_says_what_is_expected(given, found):
    with pytest.raises(ConfigError, match=found):
        database_url(Settings(database_url=given))


def test_a_described_url_has_no_password():
    text = describe(database_url(Settings(database_url="postgresql://u:hidden@h/d?sslcert=x")))
    assert text == "postgresql+asyncpg://u:***@h/d"


def test_a_missing_certificate_authority_is_named(tmp_path):
    wrong = Settings(database_url="postgresql://h/d", database_ssl="verify-full", database_ssl_ca=tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match="KVROUTE_DATABASE_SSL_CA"):
        open_engine(wrong)


def test_without_a_url_the_store_is_a_file_of_the_data_directory(tmp_path):
    url = database_url(Settings(data_dir=tmp_path))
    assert (url.get_backend_name(), url.database) == ("sqlite", f"{tmp_path}/audit.sqlite3")


def test_the_folder_of_a_sqlite_file_is_made(tmp_path):
    open_engine(Settings(database_url=f"sqlite:///{tmp_path}/new/audit.sqlite3"))
    assert (tmp_path / "new").is_dir()


def test_views_exist_for_both_dialects_and_drop_by_name():
    for dialect in ("postgresql", "sqlite"):
        made = create_statements(dialect)
        assert [statement.split()[2] for statement in made] == [view.name for view in VIEWS]
    assert len(drop_statements()) == len(VIEWS)
    assert {view.name for view in VIEWS} == {
        "v_decision_explained", "v_hit_rate_hourly", "v_worker_share", "v_media_reuse", "v_mispredicted", "v_fallbacks",
    }  # fmt: skip


def test_every_view_says_what_it_answers_and_shows_a_query():
    for view in VIEWS:
        assert view.answers
        assert view.name in view.example


def test_partitions_are_named_by_day():
    assert partition_name("decisions", date(2026, 1, 2)) == "decisions_p20260102"
    assert day_of("decisions_p20260102") == date(2026, 1, 2)
    assert day_of("decisions_default") is None
    assert is_partition("media_default")
    assert is_partition("media_p20260102")
    assert not is_partition("media")
    assert not is_partition("mediaX_p20260102")


def test_days_worth_a_partition_are_inside_the_retention():
    now, day = moment(NOON_MS), 86_400_000
    days = wanted_days([moment(NOON_MS + offset * day) for offset in (-40, -30, 0, 2, 3, 10_000)], now, 30)
    assert days == {date(2025, 12, 2), date(2026, 1, 1), date(2026, 1, 3)}
    assert retention_start(now, 30) == date(2025, 12, 2)
