"""An agent proves the layouts that its settings name, by asking the engine about them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from services.runtime.settings import Settings
from tests.integration.worker.conftest import StartFleet


class TestProcessor:
    """The model's own processor, in a process, against an engine that lays out by the family."""

    pytestmark = pytest.mark.skipif(
        find_spec("transformers") is None, reason="the extra kvroute[processor] is missing"
    )

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return settings.model_copy(update={"layout": "processor"})

    async def test_images_are_proven_under_the_processors_name(self, fleet: StartFleet) -> None:
        made = await fleet()
        (worker, *_) = await made.registrations()
        assert worker.contract is not None
        text, image, video = worker.contract.text, worker.contract.image, worker.contract.video
        assert (text.proven, image.proven, image.detail) == (True, True, None)
        assert image.variant.startswith("processor/transformers-")
        assert "/Qwen2_5_VLProcessor-" in image.variant
        assert (image.verbatim_identity, image.max_items) == (True, 4)
        assert image.max_pixels is not None
        if find_spec("torchvision") is None:
            assert not video.proven
