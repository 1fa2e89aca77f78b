"""Resize, tiles, budgets and sampling against the formulas written down a second time, plainly, on random sizes.

108,000 sizes and 5,500 clips in all. The transcriptions stand here on purpose and share nothing with the code: no numpy
where the code uses it, floats of single precision made by packing them.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from typing import Any

from services.kv.sampling import Loader, Sampling, qwen2_vl, qwen3_vl, uniform
from services.layout.families.generations import GENERATIONS, resize_clip
from services.layout.families.kimi_k25 import PatchLimits
from services.layout.families.llama4 import Canvases
from services.layout.families.llava_next import best_resolution, unpadded
from services.layout.families.nemotron_images import ImageBudget
from services.layout.families.nemotron_videos import frame_grid
from services.layout.families.resize import smart_resize
from services.layout.families.tiles import tiles_of

PINPOINTS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
RATES = (1.0, 7.5, 12.5, 14.985, 23.976023976023978, 24.0, 25.0, 29.97002997002997, 30.0, 59.94, 60.0, 120.0)


def sizes(count: int, seed: int, most: int = 9000) -> Iterator[tuple[int, int]]:
    """Heights and widths, small and large ones alike often; every fourth at a multiple where rounding ties."""
    chance = random.Random(seed)
    for number in range(count):
        height, width = (max(1, int(most ** chance.random())) for _ in range(2))
        if number % 4 == 0:
            step = chance.choice((14, 16, 336, 512))
            height, width = height // step * step + step, width // step * step + step
        yield height, width


def single(value: float) -> float:
    """The nearest float of single precision."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def outcome(rule: Any, *arguments: Any, **named: Any) -> Any:
    """What a rule makes, or that it refuses."""
    try:
        return rule(*arguments, **named)
    except (ValueError, ZeroDivisionError):
        return "refused"


def test_30_000_sizes_of_qwen_images() -> None:
    def formula(h: int, w: int, factor: int, least: int, most: int) -> tuple[int, int]:
        if max(h, w) / min(h, w) > 200:
            raise ValueError
        hb, wb = round(h / factor) * factor, round(w / factor) * factor
        if hb * wb > most:
            beta = math.sqrt((h * w) / most)
            hb = max(factor, math.floor(h / beta / factor) * factor)
            wb = max(factor, math.floor(w / beta / factor) * factor)
        elif hb * wb < least:
            beta = math.sqrt(least / (h * w))
            hb = math.ceil(h * beta / factor) * factor
            wb = math.ceil(w * beta / factor) * factor
        return hb, wb

    for height, width in sizes(30_000, 1):
        for bounds in ((28, 3136, 12845056), (32, 65536, 16777216)):
            expected = outcome(formula, height, width, *bounds)
            assert outcome(smart_resize, height, width, *bounds) == expected, (height, width, bounds)


def test_8_000_sizes_of_qwen3_clips() -> None:
    def formula(t: int, h: int, w: int, version: str) -> tuple[int, int]:
        newest, oldest = version == "5.15", version == "4.57"
        if t < 2 and (newest or oldest):
            raise ValueError
        if h < 32 or w < 32:
            if not newest:
                raise ValueError
            s = max(32 / h, 32 / w)
            h, w = int(h * s), int(w * s)
        if max(h, w) / min(h, w) > 200:
            raise ValueError
        hb, wb = round(h / 32) * 32, round(w / 32) * 32
        tb = round(t / 2) * 2 if newest or oldest else math.ceil(t / 2) * 2
        if tb * hb * wb > 25165824:
            beta = math.sqrt((t * h * w) / 25165824)
            hb, wb = (max(32, math.floor(side / beta / 32) * 32) for side in (h, w))
        elif tb * hb * wb < 4096:
            beta = math.sqrt(4096 / (t * h * w))
            hb, wb = (math.ceil(side * beta / 32) * 32 for side in (h, w))
        return hb, wb

    chance = random.Random(2)
    for height, width in sizes(8_000, 2, most=4000):
        frames = chance.choice((1, 2, 3, 4, 5, 13, 15, 32, 59, 768))
        for generation in GENERATIONS:
            expected = outcome(formula, frames, height, width, generation.name.removeprefix("transformers-"))
            found = outcome(resize_clip, generation, frames, (height, width), 32, 2, (4096, 25165824))
            assert found == expected, (generation.name, frames, height, width)


def test_20_000_sizes_of_llava_next() -> None:
    def formula(h: int, w: int) -> int:
        ranked = []
        for place, (ph, pw) in enumerate(PINPOINTS):
            s = min(pw / w, ph / h)
            dw, dh = int(w * s), int(h * s)
            eff = min(dw * dh, w * h)
            ranked.append((-eff, ph * pw - eff, place))
        ph, pw = PINPOINTS[min(ranked)[2]]
        ch, cw = 24 * (ph // 336), 24 * (pw // 336)
        if w / h > cw / ch:
            ch -= 2 * ((ch - int(round(h * (cw / w), 7))) // 2)
        else:
            cw -= 2 * ((cw - int(round(w * (ch / h), 7))) // 2)
        return ch * cw + ch + 576

    for height, width in sizes(20_000, 3, most=20_000):
        tall, wide = best_resolution(height, width, PINPOINTS)
        rows, columns = unpadded(height, width, 24 * (tall // 336), 24 * (wide // 336))
        assert rows * columns + rows + 576 == formula(height, width), (height, width)


def test_6_000_sizes_of_llama_4() -> None:
    groups: dict[float, list[tuple[int, int]]] = {}
    for c in range(16, 0, -1):
        for f in (f for f in range(1, c + 1) if c % f == 0):
            groups.setdefault(f / (c / f), []).append((f, int(c / f)))
    listed = [size for group in groups.values() for size in group]

    def formula(h: int, w: int) -> tuple[int, int]:
        scales = [min(single(336 * r / h), single(336 * c / w)) for r, c in listed]
        larger = [scale for scale in scales if scale >= 1]
        chosen = min(larger) if larger else max(scales)
        alike = [size for size, scale in zip(listed, scales, strict=True) if scale == chosen]
        return min(alike, key=lambda size: size[0] * size[1])

    canvases = Canvases(16, 336)
    for height, width in sizes(6_000, 4, most=20_000):
        assert canvases.best(height, width) == formula(height, width), (height, width)


def test_20_000_sizes_of_kimi() -> None:
    def formula(h: int, w: int) -> int:
        s = min(1, math.sqrt(16384 / (max(1, w // 14) * max(1, h // 14))), 512 * 14 / w, 512 * 14 / h)
        nw, nh = min(max(1, int(w * s)), 7168), min(max(1, int(h * s)), 7168)
        nw, nh = nw + (28 - nw % 28) % 28, nh + (28 - nh % 28) % 28
        return (nh // 28) * (nw // 28)

    limits = PatchLimits(patch=14, merge=2, total=16384, one_side=512)
    for height, width in sizes(20_000, 5, most=20_000):
        assert limits.tokens(height, width) == formula(height, width), (height, width)


def test_20_000_sizes_of_nemotron() -> None:
    def formula(h: int, w: int, budget: int) -> tuple[int, int]:
        ch, cw = round(h / 16 + 0.5), round(w / 16 + 0.5)
        f = min(math.sqrt(budget / (ch * cw)), 1)
        th, tw = math.floor(f * ch), math.floor(f * cw)
        if budget > 1024 and th * tw < 1024:
            u = math.sqrt(1024 / (th * tw))
            th, tw = math.ceil(u * th), math.ceil(u * tw)
        if th % 2:
            th = th + 1 if (th + 1) * tw <= budget else max(2, th - 1)
        if tw % 2:
            tw = tw + 1 if th * (tw + 1) <= budget else max(2, tw - 1)
        return th, tw

    def frame(h: int, w: int, target: int) -> tuple[int, int]:
        ph, pw = max(1, round(math.sqrt(target / (w / h)))), max(1, round(math.sqrt(target * (w / h))))
        if (ph + ph % 2) * (pw + pw % 2) <= target:
            return ph + ph % 2, pw + pw % 2
        return max(2, ph - ph % 2), max(2, pw - pw % 2)

    images = ImageBudget(patch=16, fewest=1024, most=13312)
    for height, width in sizes(15_000, 6, most=20_000):
        for budget in (1024, 5000, 13312):
            assert outcome(images.grid, height, width, budget) == outcome(formula, height, width, budget)
    for height, width in sizes(5_000, 7):
        assert frame_grid(height, width, 1024, keep_aspect=True) == frame(height, width, 1024), (height, width)


def test_4_000_sizes_of_tiles() -> None:
    def formula(h: int, w: int) -> int:
        ratios = [(i, j) for i in range(1, 13) for j in range(1, 13) if i * j <= 12]
        nearest = min(abs(w / h - i / j) for i, j in ratios)
        alike = sorted((i * j for i, j in ratios if abs(w / h - i / j) == nearest))
        tiles = alike[0]
        for larger in alike[1:]:
            tiles = larger if w * h > 0.5 * 512 * 512 * larger else tiles
        return tiles + (tiles > 1)

    for height, width in sizes(4_000, 8):
        assert tiles_of(height, width, 512, 12, thumbnail=True) == formula(height, width), (height, width)


def clips(count: int, seed: int) -> Iterator[tuple[int, float, float]]:
    """Frames, rate and rate wanted."""
    chance = random.Random(seed)
    for _ in range(count):
        yield (
            max(1, int(20_000 ** chance.random())),
            chance.choice(RATES),
            chance.choice((0.5, 1.0, 2.0, 2.5, 4.0, 30.0)),
        )


def test_4_000_clips_sampled_for_qwen3_and_nemotron() -> None:
    for total, fps, wanted in clips(2_000, 9):
        n = min(max(int(total / fps * wanted), 4), 768, total)
        step = (total - 1) / (n - 1) if n > 1 else 0.0
        expected = [round(i * step) for i in range(n)]
        expected[-1] = total - 1 if n > 1 else 0
        found = qwen3_vl(total, fps, Sampling.usual(Loader.QWEN3_VL, fps=wanted))
        assert found == expected, (total, fps, wanted)
    for total, fps, wanted in clips(2_000, 10):
        n = max(1, min(32, total, math.floor(total / fps * wanted)))
        step = (total - 1) / (n - 1) if n > 1 else 0.0
        expected = [int(i * step) for i in range(n)]
        expected[-1] = total - 1 if n > 1 else 0
        assert uniform(total, total / fps, Sampling.usual(Loader.OPENCV, fps=wanted)) == expected, (total, fps, wanted)


def test_1_500_clips_sampled_for_qwen2() -> None:
    def formula(total: int, fps: float, wanted: float) -> list[int]:
        mx = math.floor(min(768, total) / 2) * 2
        n = math.floor(min(max(total / fps * wanted, 4), mx, total) / 2) * 2
        step = total / n
        size = math.ceil(total / step)
        values: list[int] = []
        i = 0
        while i <= size - 16:
            for v in (0, 1):
                base = single(step * (i + 8 * v))
                values += [int(single(base + k * step)) for k in range(8)]
            i += 16
        values += [int(single(step * k)) for k in range(i, size)]
        return [min(value, total - 1) for value in values]

    for total, fps, wanted in clips(1_500, 11):
        sampling = Sampling.usual(Loader.QWEN2_VL, fps=wanted)
        assert outcome(qwen2_vl, total, fps, sampling) == outcome(formula, total, fps, wanted), (total, fps, wanted)
