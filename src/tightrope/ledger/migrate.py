"""The tables' versions, by Alembic: made, brought up to date, compared."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sql
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

__all__ = ["upgrade", "newest_revision"]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.set_main_option("path_separator", "os")
    return config


def newest_revision() -> str:
    """Revisions are numbered, so that older and newer ones can be told apart."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def upgrade(connection: sql.Connection) -> None:
    """All steps that are missing, in the transaction of this connection."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
