"""The merge rules in SQL: what an upsert does to the row that is already there."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, case, false, null, or_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import Insert

from services.audit.merge import Lead, Merging, Rule


@cache
def insert_or_skip(dialect: str, table: Table) -> Insert:
    """INSERT that leaves a row of the same key as it is: the first one wins."""
    return _insert(dialect, table).on_conflict_do_nothing(index_elements=list(table.primary_key))


@cache
def insert_or_merge(dialect: str, table: Table, merging: Merging) -> Insert:
    """INSERT that merges into a row of the same key by the rules. One statement must not name a key twice.

    Built once: these statements are large, and SQLAlchemy finds a compiled one by walking the statement.
    """
    insert = _insert(dialect, table)
    return insert.on_conflict_do_update(
        index_elements=list(table.primary_key), set_=conflict_updates(merging, table, insert.excluded)
    )


def _insert(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def conflict_updates(merging: Merging, table: Table, excluded: Any) -> dict[str, ColumnElement[Any]]:
    """``merged`` as the SET clause of an upsert: ``table`` is the row that is there, ``excluded`` the new one."""
    leading = _leads_sql(merging, excluded, table.c) if merging.leading else false()
    updates: dict[str, ColumnElement[Any]] = {}
    for column in table.c:
        if column.name in merging.key:
            continue
        old, new = column, excluded[column.name]
        rule = merging.rule(column.name)
        if rule is Rule.LEADING:
            better: ColumnElement[bool] = leading
        else:
            better = or_(old.is_(null()), new < old if rule is Rule.SMALLEST else new > old)
        updates[column.name] = case((better, new), else_=old)
    return updates


def _leads_sql(merging: Merging, new: Any, old: Any) -> ColumnElement[bool]:
    alternatives: list[ColumnElement[bool]] = []
    equal: list[ColumnElement[bool]] = []
    for lead in merging.leads:
        one, other = _criterion(lead, new[lead.column]), _criterion(lead, old[lead.column])
        alternatives.append(and_(*equal, one > other if lead.highest else one < other))
        equal.append(one == other)
    return or_(*alternatives)


def _criterion(lead: Lead, column: ColumnElement[Any]) -> ColumnElement[Any]:
    if lead.ranks is None:
        return column
    return case(*((column == word, rank) for word, rank in lead.ranks.items()), else_=0)
