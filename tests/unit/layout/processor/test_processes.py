"""Processors in real processes: answers are remembered, and whatever goes wrong there ends in a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.kv.reason import Reason
from services.layout.card import CardError
from services.layout.families.family import NotExact
from services.layout.processor.asked import Medium
from services.layout.processor.processes import Processes
from tests.unit.layout.processor import fake_processor as fake

FOLDER = Path("/models/any")
FINE = Medium("image", 56, 84)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    made = Processes(
        1, seconds=0.5, memory_bytes=1 << 30, remembered=3, describe=fake.describe, expand=fake.expand
    )
    made.describe(FOLDER)  # from here on the deadline is that of an answer
    yield made
    made.close()


def refusal(processes: Processes, height: int, width: int = 28) -> tuple[Reason, str]:
    with pytest.raises(NotExact) as caught:
        processes.expand(FOLDER, Medium("image", height, width))
    return caught.value.reason, str(caught.value)


def test_a_size_is_asked_once(processes: Processes) -> None:
    assert processes.expand(FOLDER, FINE) == [fake.PAD] * 6
    assert processes.expand(FOLDER, FINE) is processes.recall(FOLDER, FINE)


def test_what_was_not_asked_is_not_asked_by_looking_it_up(processes: Processes) -> None:
    with pytest.raises(NotExact) as caught:
        processes.recall(FOLDER, Medium("image", 560, 28))
    assert caught.value.reason is Reason.BUDGET_EXCEEDED


def test_no_more_sizes_are_remembered_than_wanted(processes: Processes) -> None:
    for rows in range(10, 14):
        processes.expand(FOLDER, Medium("image", rows * 28, 28))
    assert len(processes._known) == 3
    with pytest.raises(NotExact):
        processes.recall(FOLDER, Medium("image", 280, 28))


def test_a_refusal_is_an_answer(processes: Processes) -> None:
    said = refusal(processes, fake.REFUSES)
    assert said == (Reason.UNSUPPORTED_MEDIA, "the model's processor refuses the image: too flat")
    assert refusal(processes, fake.REFUSES) == said


def test_an_error_that_cant_travel_is_put_into_words(processes: Processes) -> None:
    reason, said = refusal(processes, fake.STUMBLES)
    assert reason is Reason.UNSUPPORTED_MEDIA
    assert "_OnlyHere" in said


def test_memory_is_bounded_and_the_process_lives_on(processes: Processes) -> None:
    before = set(processes._alive)
    assert refusal(processes, fake.FILLS_MEMORY)[0] is Reason.TOO_LARGE
    assert processes._alive == before


@pytest.mark.parametrize(("height", "said"), [(fake.HANGS, "took longer than"), (fake.DIES, "died")])
def test_a_process_that_hangs_or_dies_is_replaced(processes: Processes, height: int, said: str) -> None:
    before = set(processes._alive)
    reason, detail = refusal(processes, height)
    assert reason is Reason.BUDGET_EXCEEDED
    assert said in detail
    assert processes._alive.isdisjoint(before)
    # The same picture does not end the next process too.
    assert refusal(processes, height) == (reason, detail)
    assert not processes._alive
    assert processes.expand(FOLDER, Medium("image", 280, 56)) == [fake.PAD] * 20


def test_a_medium_that_failed_is_tried_again_later(processes: Processes) -> None:
    medium = Medium("image", fake.DIES, 56)
    with pytest.raises(NotExact):
        processes.expand(FOLDER, medium)
    processes._failed = {key: (0.0, why) for key, (_, why) in processes._failed.items()}
    assert processes._recall((str(FOLDER), medium)) is None


def test_a_processor_that_cant_be_used_says_so(processes: Processes) -> None:
    with pytest.raises(CardError, match="no processor here"):
        processes.describe(Path("/models/broken"))


def test_who_asks_while_all_processes_are_busy_does_not_wait_for_ever() -> None:
    none = Processes(0, seconds=0.01, memory_bytes=1 << 30, remembered=1)
    assert "was free" in refusal(none, 28)[1]


def test_after_the_end_nothing_is_started() -> None:
    made = Processes(1, seconds=5, memory_bytes=1 << 30, remembered=1, describe=fake.describe, expand=fake.expand)
    made.close()
    assert refusal(made, 28)[0] is Reason.BUDGET_EXCEEDED
