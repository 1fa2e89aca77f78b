"""An explanation, drawn: one sentence, the candidates with cost bars, media, predicted beside realised. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from services.audit.explain import Attempt, Explanation
from services.audit.merge import Row
from services.cli.output import counted, shown

BAR_WIDTH = 24
_TERMS = (("prefill_cost", "█", "cyan"), ("decode_cost", "▒", "yellow"), ("request_cost", "░", "magenta"))


def as_json(explanation: Explanation) -> dict[str, Any]:
    """The explanation as one object: request, media, attempts with decision, candidates and outcome."""
    return {
        "request": explanation.request,
        "media": explanation.media,
        "attempts": [
            {
                "attempt": attempt.attempt,
                "why": why(attempt),
                "decision": attempt.decision,
                "candidates": attempt.candidates,
                "outcome": attempt.outcome,
                "realised_blocks": attempt.realised_blocks,
                "token_error": attempt.token_error,
            }
            for attempt in explanation.attempts
        ],
    }


def why(attempt: Attempt) -> str:
    """One sentence: where the attempt went and what spoke for it."""
    decision, outcome = attempt.decision, attempt.outcome or {}
    if decision is None:
        code = f" ({outcome['code']})" if outcome.get("code") else ""
        return f"ended before any decision: {outcome.get('status') or 'unknown'} by {outcome.get('stage')}{code}"
    if decision["outcome"] != "routed":
        return f"{decision['outcome']}: none of {decision['candidate_count']} slots could take it"
    chosen = f"{decision['worker_id']} holds {decision['overlap_confirmed']} of {decision['total_blocks']} blocks"
    if decision["overlap_predicted"] > decision["overlap_confirmed"]:
        chosen += f" ({decision['overlap_predicted']} with recent decisions counted)"
    costs = [candidate for candidate in attempt.candidates if candidate["chosen"]]
    if costs and costs[0]["encoder_tokens"]:
        chosen += f", the encoder output of {counted(costs[0]['encoder_tokens'], 'media token')}"
    if costs:
        chosen += f" and costs {counted(costs[0]['cost'], 'block')}"
    others = [candidate for candidate in attempt.candidates if not candidate["chosen"]]
    if not others:
        return f"{chosen}; there was no other candidate"
    if decision["ties"] > 1:
        return f"{chosen}; drawn among {decision['ties']} that cost the same"
    return f"{chosen}; the next, {others[0]['worker_id']}, costs {shown(others[0]['cost'])}"


def cost_bar(candidate: Row, longest: float, width: int = BAR_WIDTH) -> Text:
    """The candidate's cost as a bar of its terms: prefill, decode, requests. ``longest``: the cost of a full bar."""
    bar = Text()
    if longest <= 0:
        return bar
    drawn, reached = 0, 0.0
    for name, glyph, style in _TERMS:
        # Ends are rounded, not lengths: the parts add up to the rounded whole.
        reached += max(0.0, float(candidate[name]))
        end = min(width, round(width * reached / longest))
        bar.append(glyph * (end - drawn), style=style)
        drawn = max(drawn, end)
    return bar


def drawing(explanation: Explanation) -> Iterator[RenderableType]:
    """What `kvroute explain` prints, top to bottom."""
    request = explanation.request
    tenant = f" of tenant {request['tenant']}" if request["tenant"] else ""
    yield Text.assemble(
        ("request ", "bold"), f"{request['request_id']}{tenant}", f"  {shown(request['created_at'])} UTC"
    )
    yield Text(f"  model {request['model'] or 'unknown'}" + (f", LoRA {request['lora']}" if request["lora"] else ""))
    for attempt in explanation.attempts:
        yield Text("")
        yield from _attempt(attempt)
    if explanation.media:
        yield Text("")
        yield _media(explanation.media)


def _attempt(attempt: Attempt) -> Iterator[RenderableType]:
    decision, outcome = attempt.decision, attempt.outcome
    title = f"attempt {attempt.attempt}" if attempt.attempt else "before any attempt"
    yield Text.assemble((f"{title}: ", "bold"), why(attempt))
    if decision is not None:
        yield Text(f"  view       {_view(decision)}")
        yield Text(f"  cache      {_predicted(decision)}, {_realised(attempt)}")
        yield Text(f"  policy     {_policy(decision)}")
        yield Text(f"  timings    {_timings(decision, outcome)}")
        if decision["excluded"]:
            yield Text(f"  excluded   {', '.join(decision['excluded'])} (earlier attempts)")
    if outcome is not None and outcome["status"] not in (None, "finished"):
        yield Text(f"  {outcome['status']:<10} {_ending(outcome)}")
    if attempt.candidates:
        yield candidates_table(attempt)


def _view(decision: Row) -> str:
    text = (
        f"{decision['mode']}: {decision['exact_tokens']} of {decision['prompt_tokens']} tokens are exact, "
        f"{counted(decision['total_blocks'], 'block')} of {decision['block_size']}"
    )
    if decision["reason"]:
        ends = decision["exact_tokens"] < decision["prompt_tokens"]
        text += f"; it ends there because of {decision['reason']}" if ends else f"; {decision['reason']}"
        text += f" ({decision['detail']})" if decision["detail"] else ""
    return text


def _predicted(decision: Row) -> str:
    return f"predicted {decision['predicted_tokens']} tokens ({counted(decision['usable_blocks'], 'block')})"


def _realised(attempt: Attempt) -> str:
    outcome, error = attempt.outcome, attempt.token_error
    if outcome is None or outcome["status"] is None:
        return "the outcome is not known yet"
    if error is None:
        return "the engine reported no cached tokens"
    difference = "as predicted" if error == 0 else f"{abs(error)} {'more' if error > 0 else 'fewer'} than predicted"
    return f"realised {outcome['cached_tokens']} tokens ({counted(attempt.realised_blocks, 'block')}): {difference}"


def _policy(decision: Row) -> str:
    parameters = ", ".join(f"{name} {shown(value)}" for name, value in sorted(decision["parameters"].items()))
    tie = f"; {decision['ties']} tied, seed {decision['seed']}" if decision["ties"] > 1 else ""
    margin = f"; margin {counted(decision['margin'], 'block')}" if decision["margin"] is not None else ""
    return f"{decision['policy']} {decision['policy_version']} ({parameters}){margin}{tie}"


def _timings(decision: Row, outcome: Row | None) -> str:
    parts = [f"{stage} {shown(ms)} ms" for stage, ms in decision["timings"].items()]
    if outcome is not None:
        parts += [f"{name} {outcome[column]} ms" for name, column in _TIMES if outcome[column] is not None]
    return ", ".join(parts) or "none recorded"


_TIMES = (("first token after", "ttft_ms"), ("end after", "total_ms"))


def _ending(outcome: Row) -> str:
    status = f" {outcome['http_status']}" if outcome["http_status"] else ""
    code = f" {outcome['code']}" if outcome["code"] else ""
    detail = f": {outcome['detail']}" if outcome["detail"] else ""
    return f"by {outcome['stage']}{status}{code}{detail}"


_MEDIA = ("to see tok", "encoded")
"""Headings of a prompt with media: tokens whose KV is not there, and those of them whose encoder output is."""


def candidates_table(attempt: Attempt) -> Table:
    """One row a candidate. What its encoder holds is told apart from its KV overlap, for prompts with media."""
    decision = attempt.decision or {}
    table = Table(title="  candidates (cost in blocks, lower is better)", title_justify="left", header_style="bold")
    media = any(candidate["vision_tokens"] for candidate in attempt.candidates)
    for heading in ("", "slot", "overlap", "+ recent", *_MEDIA[: 2 * media], "prefill tok", "decode blk", "requests",
                    "prefill", "decode", "request", "cost"):  # fmt: skip
        table.add_column(heading, justify="left" if heading in ("", "slot") else "right")
    table.add_column(Text.assemble(*((f"{glyph} {name.partition('_')[0]} ", style) for name, glyph, style in _TERMS)))
    longest = max(float(candidate["cost"]) for candidate in attempt.candidates)
    for candidate in attempt.candidates:
        table.add_row(
            Text("→" if candidate["chosen"] else "", style="bold green"),
            f"{candidate['worker_id']}/{candidate['dp_rank']}" + (" ?" if candidate["uncertain"] else ""),
            _overlap(candidate, decision),
            shown(candidate["overlap_predicted"]),
            *(shown(candidate[name]) for name in ("vision_tokens", "encoder_tokens")[: 2 * media]),
            *(shown(candidate[name]) for name in ("active_prefill_tokens", "active_decode_blocks", "active_requests")),
            *(shown(candidate[name]) for name in ("prefill_cost", "decode_cost", "request_cost", "cost")),
            cost_bar(candidate, longest),
        )
    rest = decision["candidate_count"] - len(attempt.candidates) if decision else 0
    if rest > 0:
        table.caption = (
            f"{rest} more cost {shown(decision['rest_min_cost'])} to {shown(decision['rest_max_cost'])} blocks"
        )
    return table


def _overlap(candidate: Row, decision: Row) -> str:
    tiers = [candidate[f"overlap_{tier}"] for tier in ("device", "host", "disk")]
    held = str(tiers[0]) if not any(tiers[1:]) else "+".join(map(str, tiers))
    return f"{held}/{decision.get('total_blocks', '?')}"


def _media(media: list[Row]) -> Table:
    table = Table(title="  media in prompt order", title_justify="left", header_style="bold")
    for heading in (
        "#",
        "kind",
        "identity",
        "from",
        "told the engine",
        "size",
        "tokens",
        "at token",
        "where",
        "not exact",
    ):
        table.add_column(heading)
    for medium in media:
        size = f"{medium['width']}×{medium['height']}" if medium["width"] else ""
        frames = f" ×{medium['frames']}" if medium["frames"] else ""
        table.add_row(
            shown(medium["item"]), medium["kind"], shown(medium["identity"]), medium["source"],
            shown(medium["forwarded"]), size + frames, shown(medium["tokens"]), shown(medium["token_offset"]),
            Text(f"{medium['host'] or ''}{medium['path'] or ''}"), shown(medium["reason"]),
        )  # fmt: skip
    return table
