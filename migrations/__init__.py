"""Alembic migrations of the audit store. They travel inside the package: ``kvroute db upgrade`` needs nothing else."""
