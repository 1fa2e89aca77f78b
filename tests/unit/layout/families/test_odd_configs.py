"""Whatever a folder's files say, a model is laid out, unknown, or unusable with a sentence; nothing else is raised."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from services.layout.families.family import NotExact
from services.layout.families.parameters import UnusableFamily
from services.layout.families.registry import find_family
from services.layout.folder import ModelFolder, read_folder
from services.layout.tokenise import Tokeniser
from tests.unit.layout.families.reading import FOLDERS, clip, image
from tests.unit.layout.golden import MODELS

FILES = ("config", "image_processor", "video_processor", "processor")
ODD: list[Any] = [None, [], {}, [1], {"a": []}, "x", "", 0, -1, 1, 10**9, True, 0.5, 1e300, float("nan")]
SKIPPED = {"text_config", "llm_config", "image_mean", "image_std", "norm_mean", "norm_std"}


def paths(value: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        if key not in SKIPPED:
            yield (*before, key)
            if isinstance(inner, dict):
                yield from paths(inner, (*before, key))


def with_value(folder: ModelFolder, file: str, path: tuple[str, ...], value: Any) -> ModelFolder:
    changed = copy.deepcopy(getattr(folder, file))
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return replace(folder, **{file: changed})


@pytest.mark.parametrize("name", sorted(set(FOLDERS.values())))
def test_every_value_of_every_config_made_odd(name: str) -> None:
    folder = read_folder(MODELS / name)
    tokeniser = Tokeniser.load(folder.tokenizer_file)
    usable = 0
    for file in FILES:
        for path in paths(getattr(folder, file)):
            for value in ODD:
                try:
                    family = find_family(with_value(folder, file, path, value), tokeniser.token_id)
                except UnusableFamily:
                    continue
                if family is None:
                    continue
                usable += 1
                for shape in (image(100, 200), clip(64, 96, [0, 5], 5.0)):
                    with suppress(NotExact):
                        assert family.expand(shape, lambda text: [1]).vision_tokens > 0, (file, path, value)
    assert usable
