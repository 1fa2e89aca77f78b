"""The generated pages are what the code says: every setting, topic, message, metric and reason, once."""

from __future__ import annotations

import re

from docs import pages
from docs.generate import generated, main, stale
from schemas.asyncapi import messages
from services.kv.reason import MEANING, Reason
from services.runtime.metrics import CATALOGUE
from services.runtime.settings import Settings
from services.runtime.topics import PATTERNS, TOPICS


def first_cells(page: str) -> list[str]:
    """The code words in the first column of a page's tables."""
    return re.findall(r"^\| `([^`]+)`", page, flags=re.MULTILINE)


def test_pages_are_up_to_date() -> None:
    assert stale() == [], "run `make docs`"
    assert main(["--check"]) == 0


def test_every_setting_is_listed_once() -> None:
    assert first_cells(pages.configuration()) == [f"KVROUTE_{name.upper()}" for name in Settings.model_fields]


def test_defaults_are_the_codes() -> None:
    page = pages.configuration()
    assert "| `KVROUTE_GATEWAY_PORT` | integer | 8000 |" in page
    assert "| `KVROUTE_KAFKA_BOOTSTRAP` | text | `127.0.0.1:9092` |" in page


def test_every_topic_is_listed_with_its_retention() -> None:
    page = pages.topics()
    for topic in TOPICS + PATTERNS:
        assert topic.name.split("{}")[0] in page
    assert "| delete 25 h, segments 5 min |" in page
    assert "| compact, segments 10 min |" in page


def test_every_message_and_every_part_it_names_is_described() -> None:
    page = pages.messages()
    headings = re.findall(r"^##+ (.+)$", page, flags=re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert {message.SCHEMA for message in messages()} <= set(headings)
    anchors = {re.sub(r"[^\w-]", "", heading.lower()) for heading in headings}
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) <= anchors


def test_every_metric_is_listed_with_a_meaning() -> None:
    assert sorted(first_cells(pages.metrics())) == sorted(info.name for info in CATALOGUE)
    assert all(info.meaning for info in CATALOGUE)


def test_every_reason_says_what_it_means_and_what_to_do() -> None:
    assert set(MEANING) == set(Reason)
    assert first_cells(pages.reasons()) == [str(reason) for reason in Reason]
    assert all(meaning.what and meaning.mend for meaning in MEANING.values())


def test_generated_pages_say_so() -> None:
    for path, text in generated().items():
        assert "Do not edit" in text.splitlines()[2], path
