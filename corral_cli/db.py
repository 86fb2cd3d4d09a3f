"""`corral db`: the schema of the control service's database."""

import asyncio
from pathlib import Path

import click

from control_svc.config import ControlSettings
from corral_cli.output import echo
from corral_cli.serve import load


@click.group("db")
def db() -> None:
    """Check and upgrade the database of the control service."""


_config = click.option(
    "--config", type=click.Path(path_type=Path), help="A TOML file with settings."
)


@db.command("upgrade")
@_config
def upgrade(config: Path | None) -> None:
    """Upgrade the database to the schema of this release. Does nothing if it is up to date."""
    # Imported here because it is slow, and most commands need no database.
    from control_svc.app import upgrade_database

    revision = asyncio.run(upgrade_database(load("control", config)))
    echo(f"the database is at revision {revision}")


@db.command("check")
@_config
def check(config: Path | None) -> None:
    """Check that the database has the schema of this release. If not, exit with code 1."""
    revision = asyncio.run(check_schema(load("control", config)))
    echo(f"the database is at revision {revision}, as this release needs it")


async def check_schema(settings: ControlSettings) -> str:
    """Return the revision of the database. Raises StartupError unless it is this release's."""
    from control_svc.app import check_database

    return await check_database(settings)
