"""The generated page of models: the registry of families as text."""

from __future__ import annotations

from collections.abc import Iterable

from docs.pages import _head, _page, _table
from services.layout.families.entry import Coverage, Entry
from services.layout.families.generations import GENERATIONS
from services.layout.families.registry import ENTRIES
from services.layout.families.support import ENGINES


def models() -> str:
    """Which families are exact for what, on which engines, and what that was checked against."""
    lines = _head("Models", "services/layout/families/")
    lines += [
        "A model's family is found by `model_type` and `architectures` of its config.json, never by its folder's",
        "name. All parameters and token ids come from the folder; where its files contradict each other, its media are",
        "not exact. Exact is what the workers' probes have proven: the tables say how far that can go. What is not",
        "exact is routed by the text before it, and the [reason](reasons.md) is recorded. *Checked against* names",
        "reference vectors in `tests/golden/layout`, made by the engine's own processors.",
        "",
    ]
    lines += [
        "Videos are exact where all live workers have proven one layout and take the frames that we take",
        "(`KVROUTE_VIDEO_*` in [configuration](configuration.md)). They are always decoded, in every identity mode.",
        "",
    ]
    heads = ("Family", "Media", "Exact", "When, or why not", "Else", "Checked against")
    lines += _table(heads, [row for entry in ENTRIES for row in _rows(entry)])
    lines += ["", "## Engines", "", *_engines(), "", "## Layout variants", "", *_variants()]
    lines += ["", "## Models without a family", "", *_other_paths()]
    return _page(lines)


_PATHS = (
    ("`native`", "a family of the table above", "as the table says; else text prefix, `unsupported_model`"),
    (
        "`processor`",
        "the model folder and the extra `kvroute[processor]`",
        "images where all live workers have proven the very same processor (version, class, parameters), up to the "
        "sizes and numbers that were probed",
    ),
    (
        "`render`",
        "vLLM with `--enable-scale-out`; no model folder (videos need one, for their sampling)",
        "images and videos where all live workers have proven that they run what is rendered, and render alike; up to "
        "what was probed",
    ),
)

_OTHER_PATHS = """\
`KVROUTE_LAYOUT`, or `KVROUTE_LAYOUT_BY_MODEL` for one model, says what lays out prompts: the same for the layout
stage and for the agents. The decision's variant names the path.

{table}

The processor runs offline in processes of its own, is asked once for each size of media, and gets a grey
stand-in of that size: media are not fetched for their layout. Not exact, with the reason: processors that exist
for torch only (`unsupported_model`; without torch videos are among them), code that a model folder brings (never
run), media that the processor refuses (`unsupported_media`) or takes too long for (`budget_exceeded`), text
beside the vision tokens that runs into the text around it (`placeholder_mismatch`). A video also needs a known
rule of sampling: that is so for the families above. Transformers and vLLM differ in places: there the probes
don't match, `contract_mismatch`.

A rendering is asked for every request, of one of the model's live workers or of `KVROUTE_RENDER_URL` (`vllm
launch render` needs no GPU), and nothing of it is kept. Without an answer nothing of the prompt is exact:
`contract_missing` when nobody answered, `budget_exceeded` when it took too long, `template_mismatch` when the
engine refused. Agents hold renderings against what their own engine tokenises and announces; a digest of it all
is in the variant's name, so engines with other flags `workers_disagree`. What can't be noticed: a template that
prints the time of day."""


def _other_paths() -> list[str]:
    table = _table(("Path", "What it needs", "Exact"), _PATHS)
    return _OTHER_PATHS.format(table="\n".join(table)).splitlines()


def _rows(entry: Entry) -> list[tuple[str, ...]]:
    family = f"{entry.title} ({_code(entry.model_types)})"
    return [(family, "images", *_cells(entry.image)), (family, "videos", *_cells(entry.video))]


def _cells(coverage: Coverage) -> tuple[str, ...]:
    exact = "yes" if coverage.exact else "no"
    return exact, coverage.condition, _code(coverage.reasons), _code(coverage.checked_against)


def _engines() -> list[str]:
    def titles(names: frozenset[str]) -> str:
        return "; ".join(entry.title for entry in ENTRIES if entry.engines in names) or "none"

    rows = [(row.title, row.since or "any", titles(row.images), titles(row.videos)) for row in ENGINES.values()]
    lines = _table(("Engine", "Since", "Images", "Videos"), rows)
    return [*lines, "", "A family on an engine that is not in its row: `unsupported_engine`."]


def _variants() -> list[str]:
    lines = [
        "An engine lays out Qwen3 videos as the transformers version it was built with does. Each range of versions",
        "has a name that stands in workers' contracts and in decisions, such as `qwen3_vl/transformers-5.15`. After",
        "it, `/capped` means `cap_pixels_per_frame`, and `/evs-0.5` a `--video-pruning-rate` (of other families too).",
        "Where images depend on the engine's `--max-model-len`, the name says it: `nemotron_nano_omni/len-131072`.",
        "",
    ]
    rows = [
        (
            f"`{generation.name}`",
            "stay" if generation.outer_markers else "replaced",
            "half to even" if generation.half_even else "up",
            "enlarged" if generation.enlarges else "refused",
            "accepted" if generation.single_frame else "refused",
        )
        for generation in GENERATIONS
    ]
    heads = ("From", "Markers around the video", "Odd clips round", "Frames smaller than a token", "A single frame")
    return [*lines, *_table(heads, rows)]


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
