"""Alembic migrations of the audit store, for SQLite and PostgreSQL."""
