"""EVS, the engine's pruning of video tokens (``--video-pruning-rate``): how many stay, and where the prompt has them.

Which tokens stay depends on the pixels, but not how many. The prompt, and with it the hashes of KV blocks, is made
before that is known: it has all kept tokens in the first group of frames and none in the others.
"""

from __future__ import annotations


def kept_tokens(per_group: int, groups: int, rate: float) -> int:
    """Vision tokens of a video that stay, at least those of one group of frames."""
    return max(per_group, int(per_group * groups * (1 - rate)))


def spread(per_group: int, groups: int, rate: float) -> list[int]:
    """Vision tokens of each group of frames as they stand in the prompt; ``rate`` 0 means no pruning."""
    if groups < 1:
        return []
    if not rate:
        return [per_group] * groups
    return [kept_tokens(per_group, groups, rate)] + [0] * (groups - 1)
