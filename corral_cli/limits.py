"""`corral limits`: create, list, change and delete limits and budgets, and what is left of them."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import click
from corral.control.v1 import limit_service_pb2 as pb

from corral_cli.access import control_options
from corral_cli.connection import Connection
from corral_cli.output import echo, echo_line, format_table, json_option, print_list

_NANOS: Final = 10**9
_COST: Final = pb.Limit.UNIT_COST


class Amount(click.ParamType[Decimal]):
    """A positive number; cost may have decimals."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Decimal:
        try:
            amount = Decimal(value)
        except InvalidOperation:
            self.fail(f"'{value}' is not a number", param, ctx)
        if not (amount.is_finite() and 0 < amount < 10**15):
            self.fail("it must be more than 0 and less than 10^15", param, ctx)
        return amount


allow_unknown_option = click.option(
    "--allow-unknown", is_flag=True, help="Accept names that do not exist, or not yet."
)
_amount_option = click.option(
    "--amount", type=Amount(), help="How much can be used in a period; cost in the currency."
)


def _choices(enum: Any, prefix: str) -> click.Choice[str]:
    names = [name.removeprefix(prefix).lower() for name in enum.keys()[1:]]
    return click.Choice(names)


@click.group("limits")
def limits() -> None:
    """Limit requests, tokens and cost by project, key and model."""


@limits.command("create")
@click.argument("limit_id")
@click.option("--project", default="", help="Only requests of this project. Default: all.")
@click.option(
    "--key", default="", help="Only requests with this key (its id, or name in settings)."
)
@click.option("--model", default="", help="Only requests to this model. Default: all.")
@click.option(
    "--per",
    multiple=True,
    type=_choices(pb.Limit.Subject, "SUBJECT_"),
    help="Give each project, key or model an amount of its own. Repeatable.",
)
@click.option("--unit", required=True, type=_choices(pb.Limit.Unit, "UNIT_"))
@_amount_option
@click.option(
    "--period",
    type=_choices(pb.Limit.Period, "PERIOD_"),
    help="A rate for each minute, or a budget for each day or month (UTC).",
)
@click.option("--shadow", is_flag=True, help="Only log and count requests beyond the limit.")
@allow_unknown_option
@control_options
def create(
    control: Connection,
    limit_id: str,
    project: str,
    key: str,
    model: str,
    per: tuple[str, ...],
    unit: str,
    amount: Decimal | None,
    period: str | None,
    shadow: bool,
    allow_unknown: bool,
) -> None:
    """Create the limit LIMIT_ID, a name that errors show."""
    if amount is None:
        raise click.UsageError("--amount is missing.")
    limit = pb.Limit(
        id=limit_id,
        project=project,
        key=key,
        model=model,
        per=[f"SUBJECT_{each.upper()}" for each in per],
        unit=f"UNIT_{unit.upper()}",
        period=None if period is None else f"PERIOD_{period.upper()}",
        mode="MODE_SHADOW" if shadow else "MODE_ENFORCE",
    )
    limit.amount = encode_amount(amount, is_cost=limit.unit == _COST)
    reply = control.call(
        pb.CreateLimitRequest(limit=limit, allow_unknown=allow_unknown),
        pb.CreateLimitResponse,
    )
    echo_line(describe(reply.limit))


@limits.command("list")
@json_option
@control_options
def list_limits(control: Connection, as_json: bool) -> None:
    """List the limits."""
    print_list(_all_limits(control), as_json, lambda listed: map(describe, listed))


@limits.command("status")
@click.argument("limit_id", required=False)
@json_option
@control_options
def status(control: Connection, limit_id: str | None, as_json: bool) -> None:
    """Show what is left of LIMIT_ID, or of all limits."""
    units = {each.id: each.unit for each in _all_limits(control)}
    buckets = [
        bucket
        for each in ([limit_id] if limit_id else units)
        for bucket in control.list_all(pb.ListLimitBucketsRequest(limit_id=each), "buckets")
    ]
    print_list(buckets, as_json, lambda listed: _status_table(listed, units))


@limits.command("update")
@click.argument("limit_id")
@_amount_option
@click.option("--mode", type=_choices(pb.Limit.Mode, "MODE_"))
@control_options
def update(control: Connection, limit_id: str, amount: Decimal | None, mode: str | None) -> None:
    """Change the amount or the mode of LIMIT_ID."""
    if amount is None and mode is None:
        raise click.UsageError("Nothing to change: give --amount or --mode.")
    limit = pb.Limit(id=limit_id, mode=None if mode is None else f"MODE_{mode.upper()}")
    if amount is not None:
        known = {each.id: each.unit for each in _all_limits(control)}
        limit.amount = encode_amount(amount, is_cost=known.get(limit_id) == _COST)
    reply = control.call(pb.UpdateLimitRequest(limit=limit), pb.UpdateLimitResponse)
    echo_line(describe(reply.limit))


@limits.command("delete")
@click.argument("limit_id")
@control_options
def delete(control: Connection, limit_id: str) -> None:
    """Delete LIMIT_ID."""
    control.call(pb.DeleteLimitRequest(limit_id=limit_id), pb.DeleteLimitResponse)
    echo(f"{limit_id} is deleted")


def _status_table(
    buckets: Sequence[pb.LimitBucket], units: "dict[str, pb.Limit.Unit]"
) -> list[str]:
    def row(bucket: pb.LimitBucket) -> list[str]:
        numbers = (bucket.remaining, bucket.held, bucket.used, bucket.amount)
        is_cost = units.get(bucket.limit_id) == _COST
        reset = bucket.reset_time.ToDatetime() if bucket.HasField("reset_time") else None
        return [
            bucket.limit_id,
            " ".join(filter(None, (bucket.project, bucket.key, bucket.model))) or "all",
            *(_format_amount(number, is_cost=is_cost) for number in numbers),
            f"{reset:%Y-%m-%d}" if reset else "",
        ]

    header = ["LIMIT", "FOR", "LEFT", "HELD", "USED", "OF", "RESETS"]
    return format_table(header, map(row, buckets), num_text_columns=2)


def _format_amount(amount: int, *, is_cost: bool) -> str:
    value = Decimal(amount)
    return f"{(value / _NANOS).normalize() if is_cost else value:,f}"


def describe(limit: pb.Limit) -> str:
    """Format a limit as one line."""
    amount = _format_amount(limit.amount, is_cost=limit.unit == _COST)
    unit = pb.Limit.Unit.Name(limit.unit).removeprefix("UNIT_").lower().replace("_", " ")
    period = ""
    if limit.period:
        period = f" per {pb.Limit.Period.Name(limit.period).removeprefix('PERIOD_').lower()}"
    names = (("project", limit.project), ("key", limit.key), ("model", limit.model))
    scope = [f"{name} {value}" for name, value in names if value]
    scope += [f"each {pb.Limit.Subject.Name(each)[8:].lower()}" for each in limit.per]
    shadow = "    shadow" if limit.mode == pb.Limit.MODE_SHADOW else ""
    return f"{limit.id}    {amount} {unit}{period}    {', '.join(scope) or 'everything'}{shadow}"


def encode_amount(amount: Decimal, *, is_cost: bool) -> int:
    encoded = amount * _NANOS if is_cost else amount
    if encoded != int(encoded):
        raise click.BadParameter("it must be a whole number", param_hint="--amount")
    return int(encoded)


def _all_limits(control: Connection) -> list[pb.Limit]:
    return control.list_all(pb.ListLimitsRequest(), "limits")
