"""``kvroute dlq``: look at dead letters, send them again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import click

from schemas.decision import Position
from services.cli.broker import Broker
from services.cli.groups import SuggestingGroup
from services.cli.letter import BadLetter, Letter, LetterId, redrive_of, shown_headers, shown_value
from services.cli.output import Column
from services.cli.session import Session, command_options, examples
from services.runtime.bus import Record
from services.runtime.errors import BadRecord, KvrouteError
from services.runtime.topics import DEAD_LETTERS

MOST = 1_000
"""Dead letters one redrive may send."""

_filters = (
    click.option("--topic", default="", help="Only of this original topic, such as kvroute.requests.v1."),
    click.option("--stage", default="", help="Only of this stage."),
    click.option("--code", default="", help="Only with this code, such as invalid_message."),
)


def _filter_options(command: Callable[..., object]) -> Callable[..., object]:
    for option in reversed(_filters):
        command = option(command)
    return command


@click.group(
    cls=SuggestingGroup, epilog=examples("kvroute dlq list", "kvroute dlq show 1:42", "kvroute dlq redrive 1:42")
)
def dlq() -> None:
    """Look at dead letters (records that could not be handled) and send them again. Kafka keeps them for 7 days."""


async def _newest(broker: Broker, limit: int, topic: str, stage: str, code: str) -> list[Record]:
    """The newest dead letters that fit, the newest first."""
    kept: list[deque[Record]] = []
    by_partition: dict[int, deque[Record]] = {}
    async for record in broker.read_all(DEAD_LETTERS.name):
        letter = Letter.of(record)
        if all(not wanted or wanted == found for wanted, found in _pairs(letter, topic, stage, code)):
            by_partition.setdefault(record.partition, deque(maxlen=limit)).append(record)
    kept = list(by_partition.values())
    newest = sorted((record for part in kept for record in part), key=lambda one: (-one.timestamp_ms, -one.offset))
    return newest[:limit]


def _pairs(letter: Letter, topic: str, stage: str, code: str) -> tuple[tuple[str, str], ...]:
    return (topic, letter.topic), (stage, letter.stage), (code, letter.code)


@dlq.command(
    "list", epilog=examples("kvroute dlq list", "kvroute dlq list --stage media --code invalid_message --json")
)
@_filter_options
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Rows at most.")
@command_options
def list_(session: Session, topic: str, stage: str, code: str, limit: int) -> None:
    """List dead letters, the newest first: why each failed and where its record stood."""

    async def work() -> list[Record]:
        async with session.broker() as broker:
            return await _newest(broker, limit, topic, stage, code)

    with session.out.working("reading the dead letters"):
        letters = [Letter.of(record) for record in session.run(work())]
    session.out.rows(
        letters,
        [
            Column("id", lambda letter: letter.id, whole=True),
            Column("when (UTC)", lambda letter: letter.dead_at, rank=3, whole=True),
            Column("stage", lambda letter: letter.stage, rank=1, whole=True),
            Column("code", lambda letter: letter.code, whole=True),
            Column("record", lambda letter: f"{letter.topic} {letter.partition}:{letter.offset}", rank=4),
            Column("key", lambda letter: letter.key, rank=2),
            Column("bytes", lambda letter: letter.size, right=True, rank=5, whole=True),
            Column("again", lambda letter: letter.redriven or None, right=True, rank=5, dull="", whole=True),
            Column("message", lambda letter: letter.message),
        ],
        title="Dead letters, newest first",
        empty="no dead letters",
    )


@dlq.command(epilog=examples("kvroute dlq show 1:42", "kvroute dlq show 1:42 --json"))
@click.argument("letter_id", metavar="PARTITION:OFFSET")
@click.option(
    "--max-bytes", default=4096, show_default=True, type=click.IntRange(1), help="Of a value that is no JSON."
)
@command_options
def show(session: Session, letter_id: str, max_bytes: int) -> None:
    """Show one dead letter: headers, key and value. Secrets, URL queries and inline data are left out."""
    record = session.run(_one(session, LetterId.parse(letter_id)))
    letter, headers, value = Letter.of(record), shown_headers(record), shown_value(record.value, max_bytes)
    if session.out.json:
        session.out.value({"letter": letter, "headers": headers, "value": value})
        return
    session.out.rows(
        [*_facts(letter), *((f"header {name}", text) for name, text in headers.items() if not name.startswith("dlq-"))],
        [Column("", lambda row: row[0]), Column("", lambda row: row[1])],
        title=f"Dead letter {letter.id}",
        empty="",
    )
    session.out.value(value)


def _facts(letter: Letter) -> list[tuple[str, object]]:
    return [
        ("when (UTC)", letter.dead_at),
        ("record", f"{letter.topic} {letter.partition}:{letter.offset}"),
        ("stage", letter.stage),
        ("code", letter.code),
        ("message", letter.message),
        ("key", letter.key),
        ("bytes", letter.size),
        ("sent again", letter.redriven),
    ]


async def _one(session: Session, where: LetterId) -> Record:
    async with session.broker() as broker:
        return await _letter(broker, where)


async def _letter(broker: Broker, where: LetterId) -> Record:
    position = Position(topic=DEAD_LETTERS.name, partition=where.partition, offset=where.offset)
    record = await broker.read_at(position)
    if record is None:
        raise BadLetter(f"there is no dead letter {where}: `kvroute dlq list` shows those that are kept (7 days)")
    return record


@dlq.command(
    epilog=examples(
        "kvroute dlq redrive 1:42 1:43",
        "kvroute dlq redrive --all --stage audit --dry-run",
        "kvroute dlq redrive --all --code invalid_message --limit 100",
    )
)
@click.argument("letter_ids", nargs=-1, metavar="[PARTITION:OFFSET]...")
@click.option("--all", "everything", is_flag=True, help="All that fit the filters, up to --limit.")
@_filter_options
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, MOST), help="With --all: at the most.")
@click.option("--force", is_flag=True, help="Also those that came back 3 times.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent, send nothing.")
@command_options
def redrive(
    session: Session,
    letter_ids: tuple[str, ...],
    everything: bool,
    topic: str,
    stage: str,
    code: str,
    limit: int,
    force: bool,
    dry_run: bool,
) -> int:
    """Send dead letters' original records again to where they stood: same key, value and headers.

    The header dlq-redriven counts how often. A request keeps its deadline: one that has passed is answered with 504.
    Exit code 1: one of them could not be sent.
    """
    if bool(letter_ids) == everything:
        raise click.UsageError("name the dead letters (PARTITION:OFFSET), or use --all with filters; not both")
    wanted = [LetterId.parse(text) for text in letter_ids]

    async def work() -> list[dict[str, object]]:
        async with session.broker() as broker:
            if everything:
                records = list(reversed(await _newest(broker, limit, topic, stage, code)))
            else:
                records = [await _letter(broker, where) for where in wanted]
            return [await _send_again(broker, record, force, dry_run) for record in records]

    with session.out.working("sending dead letters again"):
        results = session.run(work())
    session.out.rows(
        results,
        [
            Column("id", lambda row: row["id"]),
            Column("to", lambda row: row["topic"]),
            Column("result", lambda row: row["error"] or row["result"]),
        ],
        title="Sent again" if not dry_run else "Would be sent again",
        empty="no dead letter fits",
    )
    return 1 if any(row["error"] for row in results) else 0


async def _send_again(broker: Broker, record: Record, force: bool, dry_run: bool) -> dict[str, object]:
    letter = Letter.of(record)
    row: dict[str, object] = {"id": letter.id, "topic": letter.topic, "result": None, "error": None}
    try:
        again = redrive_of(record, force=force)
        if dry_run:
            return row | {"result": "would be sent"}
        at = await broker.sender.send_raw(again.topic, again.value, key=again.key, headers=again.headers)
    except (BadLetter, BadRecord) as error:
        return row | {"error": str(error)}
    except KvrouteError as error:
        return row | {"error": f"not sent: {error}"}
    return row | {"result": f"{at.partition}:{at.offset}"}
