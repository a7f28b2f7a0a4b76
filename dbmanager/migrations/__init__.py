"""Alembic migrations of the trial database."""
