"""SGLang's pads: turned back with what was sent, read as media of their own else, never guessed."""

from __future__ import annotations

from services.worker.engines.events import Cause
from services.worker.engines.pads import PAD_SPAN, PadReader, SentPads, is_pad, pad_of

IMAGE, START, END = 55, 52, 53
A, B = 0x1234_5678_9ABC_DEF0, 0xFEDC_BA98_7654_3210


def reader(*sent: int, media_tokens: frozenset[int] = frozenset({IMAGE})) -> PadReader:
    pads = SentPads()
    for identity in sent:
        pads.sent(identity)
    return PadReader(pads, IMAGE, media_tokens)


def test_pads_of_sent_media_are_placeholders_with_their_identities() -> None:
    tokens = [1, pad_of(A), pad_of(A), 2, pad_of(B)]
    assert reader(A, B)(tokens) == ([1, IMAGE, IMAGE, 2, IMAGE], (A, B))


def test_one_medium_twice_counts_twice() -> None:
    assert reader(A)([pad_of(A), 2, pad_of(A)]) == ([IMAGE, 2, IMAGE], (A, A))


def test_an_unknown_pad_is_a_medium_of_its_own() -> None:
    read = reader(A)
    first, second = read([pad_of(B)]), read([pad_of(B + 1)])
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert first != second
    assert first[1] not in ((A,), (B,))


def test_two_media_with_one_pad_are_told_by_nobody() -> None:
    assert reader(A, A + PAD_SPAN)([pad_of(A)]) is Cause.AMBIGUOUS_KEYS


def test_a_placeholder_without_a_pad_is_unnamed() -> None:
    assert reader()([1, IMAGE, 2]) is Cause.UNNAMED_MEDIA
    assert PadReader(SentPads(), None)([pad_of(A)]) is Cause.UNNAMED_MEDIA


def test_separators_belong_to_the_pads_beside_them() -> None:
    read = reader(A, media_tokens=frozenset({IMAGE, START, END}))
    assert read([1, START, pad_of(A), END, 2]) == ([1, START, IMAGE, END, 2], (A,))
    assert read([1, 2, 3, START]) is Cause.UNNAMED_MEDIA
    assert read([START, 2, pad_of(A)]) is Cause.UNNAMED_MEDIA


def test_no_vocabulary_reaches_the_pads() -> None:
    assert not is_pad(262_143)
    assert is_pad(pad_of(0))
    assert is_pad(pad_of(2**64 - 1))
