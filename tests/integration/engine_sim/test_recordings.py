"""The decisive test: requests recorded on a running vLLM 0.32, sent to the simulated engine, give what vLLM gave.

Compared are, for each case: the status, the batches of KV events (types, order, tokens, parents by position, extra
keys, block sizes, sessions, ranks) and the answer (prompt ids, generated ids, text, usage with cached tokens, errors).
Not compared: hash values, times, response ids, the fingerprint, and the processed inputs a rendering carries (tensors
of the real processor). Nothing else is left out; every case of both recordings is played.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.engine_sim.replay import Played, names, play_all

RECORDINGS = {"q25vl_bs16": "qwen2.5-vl", "q3vl_bs16": "qwen3-vl"}
CASES = [(recording, case) for recording in RECORDINGS for case in names(recording)]
_INCOMPARABLE = {"id", "created", "system_fingerprint", "request_id", "kwargs_data", "mm_metadata"}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Played]:
    known: dict[str, dict[str, Played]] = {}

    def play(recording: str, case: str) -> Played:
        if recording not in known:
            known[recording] = play_all(recording, RECORDINGS[recording], tmp_path_factory.mktemp(recording))
        return known[recording][case]

    return play


def test_all_cases_are_there() -> None:
    assert [recording for recording, _ in CASES].count("q25vl_bs16") == 40
    assert [recording for recording, _ in CASES].count("q3vl_bs16") == 26


@pytest.mark.parametrize(("recording", "case"), CASES)
def test_the_same_events(played: Callable[[str, str], Played], recording: str, case: str) -> None:
    found = played(recording, case)
    assert found.simulated == found.recorded


@pytest.mark.parametrize(("recording", "case"), CASES)
def test_the_same_answer(played: Callable[[str, str], Played], recording: str, case: str) -> None:
    found = played(recording, case)
    assert found.status == found.case["status"]
    assert comparable(found.response) == comparable(found.case["response"])


@pytest.mark.parametrize(("recording", "case"), CASES)
def test_answers_have_the_same_fields(played: Callable[[str, str], Played], recording: str, case: str) -> None:
    """Also of what can't be compared by value."""
    found = played(recording, case)
    assert fields(found.response) == fields(found.case["response"])


def comparable(answer: Any) -> Any:
    """The answer without what differs from run to run; names of media that nobody gave are alike."""
    if isinstance(answer, dict):
        return {key: comparable(value) for key, value in answer.items() if key not in _INCOMPARABLE}
    if isinstance(answer, list):
        return [comparable(value) for value in answer]
    return "unnamed medium" if isinstance(answer, str) and len(answer) == 64 else answer


def fields(answer: Any) -> Any:
    return {key: fields(value) for key, value in answer.items()} if isinstance(answer, dict) else None
