"""`corral keys`: API keys of a running control service, or for the settings of the services.

Only hashes of keys are stored. A key itself is shown once, here.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click
import grpc.aio
from corral.control.v1 import key_service_pb2 as pb
from corral.control.v1.key_service_pb2_grpc import KeyServiceStub
from google.protobuf.timestamp_pb2 import Timestamp

from corral_cli.connection import CONNECT_PATIENCE_S
from corral_cli.control_access import DAYS, ControlAccess, control_options, moment
from corral_cli.serve import SERVICES
from svc_kit.auth.keys import create_key, hash_key

if TYPE_CHECKING:  # the stub over an aio channel has a name for type checkers only
    from corral.control.v1.key_service_pb2_grpc import KeyServiceAsyncStub

_SCOPE = "KEY_SCOPE_"
_PRIORITY = "PRIORITY_"


@click.group("keys")
def keys() -> None:
    """Make, list and revoke API keys."""


@keys.command("create")
@click.option("--name", default="me", show_default=True, help="What people call the key.")
@click.option("--project", default="default", show_default=True, help="Whose data it sees.")
@click.option(
    "--scope", "scopes", type=click.Choice(["inference", "admin"]), multiple=True,
    default=["inference"], show_default=True, help="What it may do; may repeat.",
)  # fmt: skip
@click.option("--priority", type=click.Choice(["interactive", "normal", "batch"]))
@click.option("--days", type=DAYS, help="How long it is valid. Default: for ever.")
@click.option(
    "--offline", is_flag=True, help="Ask no service: print the settings that accept the key."
)
@control_options
def create(
    control: ControlAccess,
    name: str,
    project: str,
    scopes: tuple[str, ...],
    priority: str | None,
    days: int | None,
    offline: bool,
) -> None:
    """Make a key that every service accepts at once, and show it."""
    end = None if days is None else datetime.now(UTC) + timedelta(days=days)
    if offline:
        show_settings(name, project, scopes, priority, end)
        return
    request = pb.CreateKeyRequest(
        name=name,
        project_id=project,
        scopes=[f"{_SCOPE}{scope.upper()}" for scope in scopes],
        priority=f"{_PRIORITY}{(priority or 'unspecified').upper()}",
        expire_time=None if end is None else _stamp(end),
    )

    async def call(channel: grpc.aio.Channel) -> pb.CreateKeyResponse:
        return await _stub(channel).CreateKey(request, timeout=CONNECT_PATIENCE_S)

    created = control.ask(call)
    click.echo(f"key (shown once): {created.secret}\n")
    click.echo(describe(created.key))
    click.echo("\nCallers send it as: authorization: Bearer <key>")
    if created.serves_keyless_callers:
        click.echo(
            "Callers without a key are still served on this machine; the setting require_keys of "
            "each service (corral up --require-keys) ends that."
        )


@keys.command("list")
@click.option("--project", default="", help="Only this project's. Default: all.")
@click.option("--all", "show_revoked", is_flag=True, help="Also keys that were revoked.")
@control_options
def list_keys(control: ControlAccess, project: str, show_revoked: bool) -> None:
    """Show what is kept of the keys, newest first."""
    request = pb.ListKeysRequest(project_id=project, show_revoked=show_revoked)

    async def call(channel: grpc.aio.Channel) -> list[pb.ApiKey]:
        found: list[pb.ApiKey] = []
        while True:
            page = await _stub(channel).ListKeys(request, timeout=CONNECT_PATIENCE_S)
            found += page.keys
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    for key in control.ask(call):
        click.echo(describe(key))


@keys.command("revoke")
@click.argument("key_id")
@control_options
def revoke(control: ControlAccess, key_id: str) -> None:
    """End KEY_ID for good; every service refuses it within 30 seconds."""

    async def call(channel: grpc.aio.Channel) -> pb.RevokeKeyResponse:
        request = pb.RevokeKeyRequest(key_id=key_id)
        return await _stub(channel).RevokeKey(request, timeout=CONNECT_PATIENCE_S)

    click.echo(describe(control.ask(call).key))


@keys.command("hash")
@click.option("--key", prompt=True, hide_input=True, help="The key; asked for where not given.")
def hash_existing(key: str) -> None:
    """Print the hash of a key that exists."""
    click.echo(hash_key(key.strip()))


def describe(key: pb.ApiKey) -> str:
    """One key in one line."""
    scopes = [pb.KeyScope.Name(scope).removeprefix(_SCOPE).lower() for scope in key.scopes]
    facts = [f"project {key.project}", "+".join(scopes), f"made {moment(key.create_time)}"]
    for field, word in (
        ("expire_time", "until"),
        ("last_use_time", "last used"),
        ("revoke_time", "revoked"),
    ):
        if key.HasField(field):
            facts.append(f"{word} {moment(getattr(key, field))}")
    return f"{key.id}    {key.prefix}…    {key.name}    {', '.join(facts)}"


def show_settings(
    name: str,
    project: str,
    scopes: tuple[str, ...],
    priority: str | None,
    end: datetime | None,
) -> None:
    """Print a new key, and the lines of the configuration file that accept it."""
    key = create_key()
    click.echo(f"key (shown once): {key}\n")
    click.echo("Put these lines into the file of --config:\n")
    for service in SERVICES:
        click.echo(f"[[{service}.keys]]")
        click.echo(_entry(name, hash_key(key), project, scopes, priority, end) + "\n")
    click.echo("Callers send it as: authorization: Bearer <key>")


def _entry(
    name: str,
    digest: str,
    project: str,
    scopes: tuple[str, ...],
    priority: str | None,
    end: datetime | None,
) -> str:
    lines = [f"name = {_quoted(name)}", f"sha256 = {_quoted(digest)}"]
    if project != "default":
        lines.append(f"project = {_quoted(project)}")
    lines.append("scopes = [" + ", ".join(map(_quoted, scopes)) + "]")
    if priority:
        lines.append(f"priority = {_quoted(priority)}")
    if end:
        lines.append(f"expires_at = {end.replace(microsecond=0).isoformat()}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """A string of TOML: one of JSON, with DEL written out too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _stub(channel: grpc.aio.Channel) -> "KeyServiceAsyncStub":
    return KeyServiceStub(channel)


def _stamp(time: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp
