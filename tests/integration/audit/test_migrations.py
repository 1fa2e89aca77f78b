"""The migrations lead to what the tables say, on both databases, and back to nothing."""

from __future__ import annotations

import asyncio

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, bindparam, inspect, text

from services.audit import migrate
from services.audit.migrate import Migrated
from services.audit.partitions import is_partition
from services.audit.rows import decision_rows
from services.audit.tables import metadata
from services.audit.views import VIEWS
from tests.fakes.audit_records import decision, record_of


def candidate_row():
    message = decision("old")
    return dict(decision_rows(message, record_of(message)).candidates[0])


def typed(row):
    """Bind parameters with the types the table gives them."""
    columns = metadata.tables["candidates"].c
    return [bindparam(name, type_=columns[name].type) for name in row if name != "encoder_tokens"]


def differences(connection: Connection) -> list[object]:
    options = {
        "include_name": lambda name, kind, _parents: not (kind == "table" and is_partition(name)),
        "compare_type": True,
    }
    context = MigrationContext.configure(connection, opts=options)
    return list(compare_metadata(context, metadata))


def comments(connection: Connection) -> dict[str, str | None]:
    return {name: inspect(connection).get_table_comment(name)["text"] for name in metadata.tables}


async def test_migrating_makes_exactly_what_the_tables_say(engine):
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_primary_keys_start_with_created_at(engine):
    async with engine.connect() as connection:
        for table in metadata.tables.values():
            made = await connection.run_sync(lambda sync, name=table.name: inspect(sync).get_pk_constraint(name))
            assert made["constrained_columns"] == [column.name for column in table.primary_key]
            assert made["constrained_columns"][0] == "created_at"


async def test_no_table_refers_to_another(engine):
    async with engine.connect() as connection:
        for name in metadata.tables:
            assert await connection.run_sync(lambda sync, name=name: inspect(sync).get_foreign_keys(name)) == []


async def test_postgresql_keeps_the_comments(engine):
    if engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no comments")
    async with engine.connect() as connection:
        assert await connection.run_sync(comments) == {table.name: table.comment for table in metadata.tables.values()}


async def test_all_views_are_there_and_answer(engine):
    async with engine.connect() as connection:
        for view in VIEWS:
            assert (await connection.execute(text(f"SELECT * FROM {view.name}"))).all() == []
            assert (await connection.execute(text(view.example))).all() == []


async def test_upgrading_again_does_nothing(empty):
    assert await migrate.upgrade_engine(empty) == Migrated(None, migrate.head())
    assert await migrate.upgrade_engine(empty) == Migrated(migrate.head(), migrate.head())
    assert await migrate.current(empty) == migrate.head()


async def test_missing_views_are_made_again(engine):
    async with engine.begin() as connection:
        await connection.execute(text("DROP VIEW v_fallbacks"))
    await migrate.upgrade_engine(engine)
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM v_fallbacks"))).scalar_one() == 0


async def test_downgrading_leaves_nothing_and_the_way_up_is_open_again(engine):
    assert await migrate.downgrade_engine(engine, "base") == Migrated(migrate.head(), None)
    async with engine.connect() as connection:
        left = await connection.run_sync(lambda sync: (inspect(sync).get_table_names(), inspect(sync).get_view_names()))
    assert left == (["alembic_version"], [])
    assert (await migrate.upgrade_engine(engine)).after == migrate.head()


async def test_rows_of_the_release_before_and_its_writers_know_no_encoder_credit(empty):
    """A column that came later is zero for both, up and down and up again."""
    row = candidate_row()
    old = [name for name in row if name != "encoder_tokens"]
    insert = f"INSERT INTO candidates ({', '.join(old)}) VALUES ({', '.join(f':{name}' for name in old)})"
    await migrate.upgrade_engine(empty, "0001")
    async with empty.begin() as connection:
        await connection.execute(text(insert).bindparams(*typed(row)), row | {"rank": 0})
    await migrate.upgrade_engine(empty)
    async with empty.begin() as connection:
        await connection.execute(text(insert).bindparams(*typed(row)), row | {"rank": 1})
        found = await connection.execute(text("SELECT rank, encoder_tokens FROM candidates ORDER BY rank"))
        assert [tuple(one) for one in found] == [(0, 0), (1, 0)]
    assert (await migrate.downgrade_engine(empty, "0001")).after == "0001"
    assert (await migrate.upgrade_engine(empty)).after == migrate.head()


async def test_a_store_of_the_release_before_gets_the_views_of_this_one(empty):
    """Views are made from code, so changing one needs a migration, be it an empty one."""
    await migrate.upgrade_engine(empty, "0002")
    async with empty.begin() as connection:
        for view in VIEWS:
            await connection.execute(text(f"CREATE VIEW {view.name} AS SELECT 1 AS old"))
    await migrate.upgrade_engine(empty)
    async with empty.connect() as connection:
        found = await connection.execute(text("SELECT route_only, engine_prompt_tokens FROM v_decision_explained"))
        assert found.all() == []
    assert (await migrate.downgrade_engine(empty, "0002")).after == "0002"
    assert (await migrate.upgrade_engine(empty)).after == migrate.head()


async def test_postgresql_keeps_the_columns_comments(engine):
    if engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no comments")
    async with engine.connect() as connection:
        made = await connection.run_sync(lambda sync: inspect(sync).get_columns("outcomes"))
    expected = {column.name: column.comment for column in metadata.tables["outcomes"].columns}
    assert {column["name"]: column["comment"] for column in made} == expected


async def test_two_upgrades_at_once_end_well(empty):
    if empty.dialect.name != "postgresql":
        pytest.skip("SQLite has one writer")
    done = await asyncio.gather(migrate.upgrade_engine(empty), migrate.upgrade_engine(empty))
    assert {result.after for result in done} == {migrate.head()}


def test_the_migrations_travel_inside_the_package():
    assert (migrate.migrations_folder() / "env.py").is_file()
    assert migrate.head() == "0003"
