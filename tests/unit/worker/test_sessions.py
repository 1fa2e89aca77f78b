"""The session id an engine is told: one, whoever named it where, and never another tenant's or an agent's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.sessions import take_session


@pytest.mark.parametrize(
    ("body", "stated", "told", "left"),
    [
        ({}, None, None, {}),
        ({}, "s", "s", {}),
        ({"session_id": "b"}, "s", "b", {"session_id": "b"}),
        ({"vllm_xargs": {"session_id": "x", "k": 1}}, None, "x", {"vllm_xargs": {"session_id": "x", "k": 1}}),
        ({"vllm_xargs": {"session_id": "x"}}, "s", "s", {"vllm_xargs": {"session_id": "s"}}),
        ({"session_id": "", "vllm_xargs": {"session_id": "x"}}, "s", "s",
         {"session_id": "s", "vllm_xargs": {"session_id": "s"}}),
        ({"session_id": 5, "vllm_xargs": {"session_id": [1]}}, None, None, {"vllm_xargs": {}}),
        ({"vllm_xargs": "none"}, "s", "s", {"vllm_xargs": "none"}),
    ],
)  # fmt: skip
def test_all_places_say_what_the_engine_would_have_read_first(
    body: dict[str, Any], stated: str | None, told: str | None, left: dict[str, Any]
) -> None:
    assert take_session(body, stated, "", None) == told
    assert body == left


def test_an_agents_own_is_for_requests_without() -> None:
    assert take_session({}, None, "t", "~own-1") == "~own-1"
    assert take_session({}, "s", "t", "~own-1") == "t/s"
    body = {"session_id": None}
    assert take_session(body, None, "", "~own-1") == "~own-1"
    assert body == {"session_id": "~own-1"}


names = st.text(max_size=300) | st.sampled_from(["~own-1", "t/s", "s", "t", "../x", "a\r\nX-Evil: 1", "\ud800"])


@given(one=names, other=names, tenants=st.tuples(st.sampled_from(["", "t", "u"]), st.sampled_from(["", "t", "u"])))
def test_two_are_told_as_one_only_if_they_are_and_none_as_an_agents(
    one: str, other: str, tenants: tuple[str, str]
) -> None:
    first, second = (
        take_session({"session_id": name}, None, tenant, None)
        for name, tenant in zip((one, other), tenants, strict=True)
    )
    if one and other:
        assert first is not None
        assert (first == second) == ((one, tenants[0]) == (other, tenants[1]))
        assert not first.startswith("~")
        assert first.isascii()
        assert first.isprintable()
        assert " " not in first
