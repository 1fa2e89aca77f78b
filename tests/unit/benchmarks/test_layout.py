"""What the layout benchmark lays out is what it says."""

import random

from benchmarks.layout import IMAGES, MODEL, TOKENS, chat, text_of
from schemas.media import MediaKind
from services.layout.card import ModelCard
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape


def test_the_chat_has_the_tokens_and_images_it_is_measured_for() -> None:
    body = chat(random.Random(1))
    layouter = Layouter(ModelCard.load(MODEL))
    view = layouter.view(body, [MediaShape(MediaKind.IMAGE, 480, 640)] * IMAGES)
    assert view.exact
    assert len(view.spans) == IMAGES
    text = len(view.token_ids) - sum(span.length for span in view.spans)
    assert TOKENS <= text < TOKENS + 100
    assert abs(len(layouter.encode(text_of(body))) - TOKENS) < 10
