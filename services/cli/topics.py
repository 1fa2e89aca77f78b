"""``kvroute topics``: the topic table, on the broker."""

from __future__ import annotations

import click

from services.cli.groups import SuggestingGroup
from services.cli.output import Column
from services.cli.session import Session, command_options, examples
from services.runtime.admin import TopicState
from services.runtime.topics import TOPICS


@click.group(cls=SuggestingGroup, epilog=examples("kvroute topics create", "kvroute topics list --json"))
def topics() -> None:
    """Create and list topics. The table is in docs/topics.md."""


@topics.command(
    epilog=examples("kvroute topics create", "KVROUTE_KAFKA_REPLICATION=3 kvroute topics create --config kvroute.toml")
)
@command_options
def create(session: Session) -> None:
    """Create the topics that are missing. Existing ones are left as they are."""

    async def work() -> list[str]:
        async with session.broker() as broker:
            return await broker.create_topics()

    with session.out.working("creating topics"):
        made = session.run(work())
    if session.out.json:
        session.out.value({"created": made, "topics": len(TOPICS)})
    else:
        session.out.draw(f"created {len(made)} of {len(TOPICS)} topics" + "".join(f"\n  {name}" for name in made))


@topics.command("list", epilog=examples("kvroute topics list", "kvroute topics list --json"))
@command_options
def list_(session: Session) -> int:
    """List the topics of this fleet. Exit code 1: one is missing or has other partitions than the table says."""

    async def work() -> list[TopicState]:
        async with session.broker() as broker:
            return await broker.list_topics()

    with session.out.working("asking the broker"):
        found = session.run(work())
    names = {state.name for state in found}
    missing = [topic.name for topic in TOPICS if topic.name not in names]
    purposes = {topic.name: topic.purpose for topic in TOPICS}
    session.out.rows(
        found,
        [
            Column("topic", lambda state: state.name, whole=True),
            Column("partitions", lambda state: state.partitions, right=True),
            Column("expected", lambda state: state.expected, right=True),
            Column("purpose", lambda state: purposes.get(state.name, "made at run time")),
        ],
        title="Topics",
        empty="there are no topics yet: run `kvroute topics create`",
    )
    for name in missing:
        session.out.say(f"missing: {name} (run `kvroute topics create`)")
    for state in found:
        if not state.right:
            session.out.say(f"{state.name} has {state.partitions} partitions, the table says {state.expected}")
    return 1 if missing or not all(state.right for state in found) else 0
