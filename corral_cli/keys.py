"""`corral keys`: new API keys, and the settings that make a server accept them.

Servers store the hash of a key only. The key itself is shown once, here.
"""

from datetime import UTC, datetime, timedelta

import click

from corral_cli.services import SERVICES
from svc_kit.auth import create_key, hash_key


@click.group("keys")
def keys() -> None:
    """Make API keys."""


@keys.command("create")
@click.option("--name", default="me", show_default=True, help="What the log calls the key.")
@click.option("--project", default="default", show_default=True, help="Whose data it sees.")
@click.option(
    "--scope", "scopes", type=click.Choice(["inference", "admin"]), multiple=True,
    default=["inference"], show_default=True, help="What it may do; may repeat.",
)  # fmt: skip
@click.option("--priority", type=click.Choice(["interactive", "normal", "batch"]))
@click.option("--days", type=click.IntRange(min=1), help="How long it is valid. Default: for ever.")
def create(
    name: str, project: str, scopes: tuple[str, ...], priority: str | None, days: int | None
) -> None:
    """Print a new key, and the lines of the configuration file that accept it."""
    key = create_key()
    click.echo(f"key (shown once): {key}\n")
    click.echo("Put these lines into the file of --config:\n")
    for service in SERVICES:
        click.echo(f"[[{service}.keys]]")
        click.echo(_entry(name, hash_key(key), project, scopes, priority, days) + "\n")
    click.echo("Callers send it as: authorization: Bearer <key>")


@keys.command("hash")
@click.option("--key", prompt=True, hide_input=True, help="The key; asked for where not given.")
def hash_existing(key: str) -> None:
    """Print the hash of a key that exists."""
    click.echo(hash_key(key.strip()))


def _entry(
    name: str,
    digest: str,
    project: str,
    scopes: tuple[str, ...],
    priority: str | None,
    days: int | None,
) -> str:
    lines = [f'name = "{name}"', f'sha256 = "{digest}"']
    if project != "default":
        lines.append(f'project = "{project}"')
    lines.append("scopes = [" + ", ".join(f'"{scope}"' for scope in scopes) + "]")
    if priority:
        lines.append(f'priority = "{priority}"')
    if days:
        end = datetime.now(UTC) + timedelta(days=days)
        lines.append(f"expires_at = {end.replace(microsecond=0).isoformat()}")
    return "\n".join(lines)
