"""`corral keys`: API keys of a running control service, or for the settings of the services.

Only hashes of keys are stored. The key itself is printed once, when it is created.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import click
from corral.control.v1 import key_service_pb2 as pb
from corral.control.v1.limit_service_pb2 import Limit
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from corral_cli.access import DAYS, access_options, control_options, format_time
from corral_cli.connection import Connection
from corral_cli.limits import Amount, allow_unknown_option, encode_amount
from corral_cli.output import echo, echo_line, json_option, print_list
from corral_cli.serve import SERVICES
from svc_kit.auth.keys import create_key, hash_key

_SCOPE = "KEY_SCOPE_"
_SCOPES = [name.removeprefix(_SCOPE).lower() for name in pb.KeyScope.keys()[1:]]


@click.group("keys")
def keys() -> None:
    """Create, list, rotate and revoke API keys."""


@keys.command("create")
@click.option("--name", default="me", show_default=True, help="Display name of the key.")
@click.option(
    "--project", default="default", show_default=True, help="The project whose data it can access."
)
@click.option(
    "--scope", "scopes", type=click.Choice(_SCOPES), multiple=True,
    default=["inference"], show_default=True, help="What it permits; can be repeated.",
)  # fmt: skip
@click.option(
    "--model", "models", multiple=True,
    help="A model that it permits, by each name that requests use; can be repeated. Not with the"
    " scope inference. Default: all.",
)  # fmt: skip
@click.option(
    "--network", "networks", multiple=True,
    help="A network from which it permits requests, as in 10.0.0.0/8; can be repeated. Default:"
    " all.",
)  # fmt: skip
@click.option("--priority", type=click.Choice(["interactive", "normal", "batch"]))
@click.option("--days", type=DAYS, help="Days until it expires. Default: never.")
@click.option("--budget", type=Amount(), help="What it may cost in a period. Default: no limit.")
@click.option(
    "--soft-budget", type=Amount(), help="Cost beyond which it is served, logged and counted."
)
@click.option(
    "--budget-period", type=click.Choice(["day", "month"]), default="month", show_default=True
)
@allow_unknown_option
@click.option(
    "--offline", is_flag=True, help="Call no service; print the settings that accept the key."
)
@access_options
def create(
    connect: Callable[[str], Connection],
    name: str,
    project: str,
    scopes: tuple[str, ...],
    models: tuple[str, ...],
    networks: tuple[str, ...],
    priority: str | None,
    days: int | None,
    budget: Decimal | None,
    soft_budget: Decimal | None,
    budget_period: str,
    allow_unknown: bool,
    offline: bool,
) -> None:
    """Create a key that every service accepts immediately, and print it."""
    limits = budget_limits(budget_period, enforced=budget, shadow=soft_budget)
    if limits and offline:
        raise click.UsageError(
            "A key of the settings gets its budget by: corral limits create --key"
        )
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    if offline:
        lists = {"scopes": scopes, "models": models, "networks": networks}
        print_settings(name, project, lists, priority, expires_at)
        return
    request = pb.CreateKeyRequest(
        name=name,
        project_id=project,
        scopes=[f"{_SCOPE}{scope.upper()}" for scope in scopes],
        priority=f"PRIORITY_{(priority or 'unspecified').upper()}",
        expire_time=None if expires_at is None else _timestamp(expires_at),
        models=models,
        networks=networks,
        allow_unknown=allow_unknown,
        limits=limits,
    )
    created = connect("control").call(request, pb.CreateKeyResponse)
    echo_line(f"key (shown once): {created.secret}")
    echo()
    echo_line(describe(created.key))
    echo("\nCallers send it as: authorization: Bearer <key>")
    if created.serves_keyless_callers:
        echo(
            "Callers without a key are still served on this machine; the setting require_keys of "
            "each service (corral up --require-keys) ends that."
        )


@keys.command("list")
@click.option("--project", default="", help="Only keys of this project. Default: all projects.")
@click.option("--all", "show_revoked", is_flag=True, help="Include revoked keys.")
@json_option
@control_options
def list_keys(control: Connection, project: str, show_revoked: bool, as_json: bool) -> None:
    """List the keys, newest first."""
    request = pb.ListKeysRequest(project_id=project, show_revoked=show_revoked)
    listed = control.list_all(request, "keys")
    print_list(listed, as_json, lambda keys: map(describe, keys))


@keys.command("revoke")
@click.argument("key_id")
@control_options
def revoke(control: Connection, key_id: str) -> None:
    """Revoke KEY_ID permanently. Every service refuses it within 30 seconds."""
    request = pb.RevokeKeyRequest(key_id=key_id)
    reply = control.call(request, pb.RevokeKeyResponse)
    echo_line(describe(reply.key))


@keys.command("rotate")
@click.argument("key_id")
@click.option(
    "--overlap-hours",
    type=click.IntRange(min=0, max=90 * 24),
    default=24,
    show_default=True,
    help="How long the present secret stays valid.",
)
@click.option("--days", type=DAYS, help="Days until the key expires. Default: as before.")
@control_options
def rotate(control: Connection, key_id: str, overlap_hours: int, days: int | None) -> None:
    """Give KEY_ID a new secret, and print it. Its id, rights and limits stay."""
    overlap = Duration()
    overlap.FromTimedelta(timedelta(hours=overlap_hours))
    expires_at = None if days is None else _timestamp(datetime.now(UTC) + timedelta(days=days))
    request = pb.RotateKeyRequest(key_id=key_id, overlap=overlap, expire_time=expires_at)
    rotated = control.call(request, pb.RotateKeyResponse)
    echo_line(f"key (shown once): {rotated.secret}")
    echo()
    echo_line(describe(rotated.key))


@keys.command("hash")
@click.option("--key", prompt=True, hide_input=True, help="The key. Default: a prompt asks for it.")
def hash_existing(key: str) -> None:
    """Print the hash of an existing key."""
    echo(hash_key(key.strip()))


def budget_limits(
    period: str, *, enforced: Decimal | None, shadow: Decimal | None = None
) -> list[Limit]:
    """The limits of a new key with budgets, of cost in each `day` or `month`."""
    return [
        Limit(
            unit="UNIT_COST",
            amount=encode_amount(amount, is_cost=True),
            period=f"PERIOD_{period.upper()}",
            mode=mode,
        )
        for amount, mode in ((enforced, "MODE_ENFORCE"), (shadow, "MODE_SHADOW"))
        if amount is not None
    ]


def describe(key: pb.ApiKey) -> str:
    """Format a key as one line."""
    scopes = [pb.KeyScope.Name(scope).removeprefix(_SCOPE).lower() for scope in key.scopes]
    facts = [f"project {key.project}", "+".join(scopes), f"made {format_time(key.create_time)}"]
    for field, label in (
        ("expire_time", "until"),
        ("rotate_time", "rotated"),
        ("old_expire_time", "previous secret until"),
        ("last_use_time", "last used"),
        ("revoke_time", "revoked"),
    ):
        if key.HasField(field):
            facts.append(f"{label} {format_time(getattr(key, field))}")
    for label, values in (("models", key.models), ("networks", key.networks)):
        if values:
            facts.append(f"{label} {' '.join(values)}")
    return f"{key.id}    {key.prefix}…    {key.name}    {', '.join(facts)}"


def print_settings(
    name: str,
    project: str,
    lists: Mapping[str, Sequence[str]],
    priority: str | None,
    expires_at: datetime | None,
) -> None:
    """Create a key; print it and the lines of the configuration file that accept it."""
    key = create_key()
    lines = [f"name = {_toml_string(name)}", f"sha256 = {_toml_string(hash_key(key))}"]
    if project != "default":
        lines.append(f"project = {_toml_string(project)}")
    lines += [
        f"{setting} = [" + ", ".join(map(_toml_string, values)) + "]"
        for setting, values in lists.items()
        if values
    ]
    if priority:
        lines.append(f"priority = {_toml_string(priority)}")
    if expires_at:
        lines.append(f"expires_at = {expires_at.replace(microsecond=0).isoformat()}")
    echo(f"key (shown once): {key}\n")
    echo("Put these lines into the file of --config:\n")
    for service in SERVICES:
        echo("\n".join([f"[[{service}.keys]]", *lines, ""]))
    echo("Callers send it as: authorization: Bearer <key>")


def _toml_string(text: str) -> str:
    """Quote a TOML string: like a JSON string, but DEL is escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _timestamp(time: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp
