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
from services.cli.tables import Column, Dull, fitted
from services.router.situation import Parameters

BAR_WIDTH = 24
_TERMS = (("prefill_cost", "█", "cyan"), ("decode_cost", "▒", "yellow"), ("request_cost", "░", "magenta"))


def as_json(explanation: Explanation) -> dict[str, Any]:
    """The explanation as one object: request, media, attempts with decision, candidates and outcome."""
    return {
        "request": explanation.request,
        "media": explanation.media,
        "seen_behind_another_prefix": explanation.elsewhere,
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
        tried = f"; tried before: {', '.join(decision['excluded'])}" if decision["excluded"] else ""
        return f"{decision['outcome']}: no slot could take it{tried}"
    asked = "route only, nothing was run: " if decision["route_only"] and not outcome.get("status") else ""
    held = f"{decision['overlap_confirmed']} of {decision['total_blocks']} blocks"
    chosen = f"{asked}{decision['worker_id']} holds {held}"
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


def drawing(explanation: Explanation, width: int) -> Iterator[RenderableType]:
    """What `kvroute explain` prints, top to bottom, on a terminal so many characters wide."""
    request = explanation.request
    tenant = f" of tenant {request['tenant']}" if request["tenant"] else ""
    yield Text.assemble(
        ("request ", "bold"), f"{request['request_id']}{tenant}", f"  {shown(request['created_at'])} UTC"
    )
    yield Text(f"  model {request['model'] or 'unknown'}" + (f", LoRA {request['lora']}" if request["lora"] else ""))
    for attempt in explanation.attempts:
        yield Text("")
        yield from _attempt(attempt, width)
    if explanation.media:
        yield Text("")
        yield _media(explanation.media, width)
    for one in explanation.elsewhere:
        yield Text(
            f"  {one.kind} {one.item} was sent to {one.worker_id} before (request {one.request_id}), but behind "
            "another prefix: KV is reused from the prompt's first token on, so its blocks there are others"
        )


def _attempt(attempt: Attempt, width: int) -> Iterator[RenderableType]:
    title = f"attempt {attempt.attempt}" if attempt.attempt else "before any attempt"
    yield Text.assemble((f"{title}: ", "bold"), why(attempt))
    # A grid, so that lines that are too long go on below their own beginning.
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, fact in _facts(attempt):
        facts.add_row(Text(f"  {name}"), Text(fact))
    if facts.row_count:
        yield facts
    if attempt.candidates:
        yield candidates_table(attempt, width)


def _facts(attempt: Attempt) -> Iterator[tuple[str, str]]:
    decision, outcome = attempt.decision, attempt.outcome
    if decision is not None:
        yield "view", _view(decision, outcome)
        yield "cache", f"{_predicted(decision)}, {_realised(attempt)}"
        yield "policy", _policy(decision)
        yield "timings", _timings(decision, outcome)
        if decision["excluded"]:
            yield "excluded", f"{', '.join(decision['excluded'])} (earlier attempts)"
    if outcome is not None and outcome["status"] not in (None, "finished"):
        yield outcome["status"], _ending(outcome)


def _view(decision: Row, outcome: Row | None) -> str:
    about, estimated = "", ""
    if decision["mode"] != "exact":
        engine = (outcome or {}).get("prompt_tokens")
        known = f"the engine counted {engine}" if engine is not None else "the engine counts for itself"
        about, estimated = "about ", f" (estimated: {known})"
    counts = f"{decision['exact_tokens']} of {about}{decision['prompt_tokens']} tokens are exact{estimated}"
    text = f"{decision['mode']}: {counts}, {counted(decision['total_blocks'], 'block')} of {decision['block_size']}"
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
        decided = attempt.decision or {}
        return "nothing was run" if decided.get("route_only") else "the outcome is not known yet"
    if error is None:
        return "the engine reported no cached tokens"
    difference = "as predicted" if error == 0 else f"{abs(error)} {'more' if error > 0 else 'fewer'} than predicted"
    return f"realised {outcome['cached_tokens']} tokens ({counted(attempt.realised_blocks, 'block')}): {difference}"


def _policy(decision: Row) -> str:
    parameters = ", ".join(_changed(decision["parameters"])) or "parameters at their defaults"
    tie = f"; {decision['ties']} tied, seed {decision['seed']}" if decision["ties"] > 1 else ""
    margin = f"; margin {counted(decision['margin'], 'block')}" if decision["margin"] is not None else ""
    return f"{decision['policy']} {decision['policy_version']} ({parameters}){margin}{tie}"


def _changed(parameters: Row) -> Iterator[str]:
    """Weights and scales that are not at their defaults. ``turn`` is whose turn it was, which only one policy asks."""
    defaults = Parameters().as_dict()
    for name, value in sorted(parameters.items()):
        if name != "turn" and value != defaults.get(name):
            yield f"{name} {shown(value)}"


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


def candidates_table(attempt: Attempt, width: int) -> Table:
    """One row a candidate. What its encoder holds is told apart from its KV overlap, for prompts with media."""
    decision = attempt.decision or {}
    media = any(candidate["vision_tokens"] for candidate in attempt.candidates)
    longest = max(float(candidate["cost"]) for candidate in attempt.candidates)
    columns = [
        Column("", lambda row: Text("→" if row["chosen"] else "", style="bold green"), whole=True),
        Column("slot", _slot, whole=True),
        Column("overlap", lambda row: _overlap(row, decision), right=True, whole=True),
        Column("+ recent", lambda row: row["overlap_predicted"], right=True, rank=5, whole=True),
    ]
    if media:
        columns += [
            _number("to see\ntokens", "vision_tokens", rank=4),
            _number("to see:\nencoded", "encoder_tokens", rank=3, dull=0),
        ]
    columns += [
        _number("in flight:\nprefill tok", "active_prefill_tokens", rank=6, dull=0),
        _number("in flight:\ndecode blk", "active_decode_blocks", rank=7, dull=0),
        _number("in flight:\nrequests", "active_requests", rank=8, dull=0),
        _number("cost:\nprefill", "prefill_cost"),
        _number("cost:\ndecode", "decode_cost"),
        _number("cost:\nrequest", "request_cost", dull=0),
        _number("cost", "cost"),
        Column(_LEGEND, lambda row: cost_bar(row, longest), rank=9, whole=True, missed=False),
    ]
    rest = decision["candidate_count"] - len(attempt.candidates) if decision else 0
    more = ""
    if rest > 0:
        more = f"{rest} more cost {shown(decision['rest_min_cost'])} to {shown(decision['rest_max_cost'])} blocks"
    title = "  candidates (cost in blocks, lower is better)"
    return fitted(attempt.candidates, columns, width, title=title, caption=more)


_LEGEND = "█ prefill ▒ decode\n░ request"


def _number(heading: str, name: str, rank: int = 0, dull: object = Dull.NEVER) -> Column:
    return Column(heading, lambda row: row[name], right=True, rank=rank, dull=dull, whole=True)


def _slot(candidate: Row) -> str:
    return f"{candidate['worker_id']}/{candidate['dp_rank']}" + (" ?" if candidate["uncertain"] else "")


def _overlap(candidate: Row, decision: Row) -> str:
    tiers = [candidate[f"overlap_{tier}"] for tier in ("device", "host", "disk")]
    held = str(tiers[0]) if not any(tiers[1:]) else "+".join(map(str, tiers))
    return f"{held}/{decision.get('total_blocks', '?')}"


def _media(media: list[Row], width: int) -> Table:
    columns = [
        Column("#", lambda row: row["item"], right=True, whole=True),
        Column("kind", lambda row: row["kind"], rank=2, dull=Dull.SAME, whole=True),
        Column("identity", lambda row: row["identity"], whole=True),
        Column("from", lambda row: row["source"], rank=3, dull=Dull.SAME, whole=True),
        Column("told the\nengine", lambda row: row["forwarded"], rank=4, dull=Dull.SAME, whole=True),
        Column("size", _size, rank=1, whole=True),
        Column("tokens", lambda row: row["tokens"], right=True, whole=True),
        Column("at token", lambda row: row["token_offset"], right=True, whole=True),
        Column("where", lambda row: f"{row['host'] or ''}{row['path'] or ''}", rank=5, dull=""),
        Column("not exact", lambda row: row["reason"], dull=""),
    ]
    return fitted(media, columns, width, title="  media in prompt order")


def _size(medium: Row) -> str:
    size = f"{medium['width']}×{medium['height']}" if medium["width"] else ""
    return size + (f" ×{medium['frames']}" if medium["frames"] else "")
