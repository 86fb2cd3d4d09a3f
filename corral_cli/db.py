"""`corral db`: the schema of the control service's database."""

import asyncio

import click

from control_svc.config import ControlSettings
from corral_cli.backup import installation_options
from corral_cli.output import echo


@click.group("db")
def db() -> None:
    """Check and upgrade the database of the control service."""


@db.command("upgrade")
@installation_options
def upgrade(settings: ControlSettings) -> None:
    """Upgrade the database to the schema of this release. Does nothing if it is up to date."""
    # Imported here because it is slow, and most commands need no database.
    from control_svc.app import upgrade_database

    revision = asyncio.run(upgrade_database(settings))
    echo(f"the database is at revision {revision}")


@db.command("check")
@installation_options
def check(settings: ControlSettings) -> None:
    """Check that the database has the schema of this release. If not, exit with code 1."""
    revision = asyncio.run(check_schema(settings))
    echo(f"the database is at revision {revision}, as this release needs it")


async def check_schema(settings: ControlSettings) -> str:
    """Return the revision of the database. Raises StartupError unless it is this release's."""
    from control_svc.app import check_database

    return await check_database(settings)
