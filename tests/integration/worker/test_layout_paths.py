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


class TestRender:
    """The engine's own renderings, against what it runs."""

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return settings.model_copy(update={"layout": "render"})

    async def test_all_kinds_are_proven_under_the_engines_name(self, fleet: StartFleet) -> None:
        made = await fleet()
        (worker, *_) = await made.registrations()
        assert worker.contract is not None
        assert worker.engine_url == made.engine.http_url
        for found in (worker.contract.text, worker.contract.image, worker.contract.video):
            assert (found.proven, found.detail) == (True, None)
            assert found.variant.startswith("render/vllm-0.32.0/")
        assert worker.contract.image.verbatim_identity
        assert worker.contract.video.sampling

    async def test_two_engines_that_render_alike_have_one_name_and_others_have_another(self, fleet: StartFleet) -> None:
        names = []
        for most in (9, 9, 2):
            made = await fleet(limit_mm_per_prompt={"image": most, "video": 1})
            (*_, worker) = await made.registrations()
            await made.service.stop()
            assert worker.contract is not None
            names.append((worker.contract.text.variant, worker.contract.image.variant))
        assert names[0] == names[1]
        assert names[0][0] == names[2][0]
        assert names[0][1] != names[2][1]
