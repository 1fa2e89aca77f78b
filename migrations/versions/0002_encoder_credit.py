"""Candidates: the media tokens whose encoder output the slot still held

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The default is for the rows that are there and for writers of the release before, who do not know the column.
    op.add_column(
        "candidates",
        sa.Column(
            "encoder_tokens",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="of vision_tokens: encoder output still held",
        ),
    )


def downgrade() -> None:
    op.drop_column("candidates", "encoder_tokens")
