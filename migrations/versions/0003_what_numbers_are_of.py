"""Views: rates are of the engine's prompt tokens, times to first token of streamed answers, asking is no running

Views are made anew after every migration, from code: this one brings stores that exist to them. Of the tables only a
comment changes.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BEFORE = "first token, since the request was made"
_AFTER = "first token, since the request was made; not streamed: the answer"


def upgrade() -> None:
    _comment(_BEFORE, _AFTER)


def downgrade() -> None:
    _comment(_AFTER, _BEFORE)


def _comment(before: str, after: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column(
            "outcomes", "ttft_ms", existing_type=sa.BigInteger(), comment=after, existing_comment=before
        )
