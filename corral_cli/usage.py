"""`corral usage`: tokens, requests and cost by project, model and period."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import click
from corral.control.v1 import usage_service_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from corral_cli.access import DAYS, control_options, format_time
from corral_cli.connection import Connection
from corral_cli.output import format_option, format_table, print_csv, print_list

_HEADER = ("from (UTC)", "project", "model", "requests", "prompt", "cached", "completion", "cost")
_NUM_TEXT_COLUMNS = 3


@click.command("usage")
@click.option("--project", default="", help="Only this project. Default: all.")
@click.option("--model", default="", help="Only this model. Default: all.")
@click.option("--key", default="", help="Only this API key: its id, or its name in settings.")
@click.option("--days", type=DAYS, default=30, show_default=True)
@click.option(
    "--by", "period", type=click.Choice(["day", "hour"]), default="day", show_default=True
)
@format_option
@control_options
def usage(
    control: Connection,
    project: str,
    model: str,
    key: str,
    days: int,
    period: str,
    listing_format: str,
) -> None:
    """Show requests, tokens and cost by project and model, oldest first."""
    start = Timestamp()
    start.FromDatetime(datetime.now(UTC) - timedelta(days=days))
    request = pb.ListUsageRequest(
        project=project,
        key=key,
        model=model,
        start_time=start,
        period=f"PERIOD_{period.upper()}",
    )
    sums = control.list_all(request, "sums")
    if listing_format == "csv":
        print_csv(sums, pb.UsageSum)
    else:
        print_list(sums, listing_format == "json", table)


def table(sums: Iterable[pb.UsageSum]) -> list[str]:
    """Format the sums as aligned lines below a header, numbers to the right."""
    return format_table(_HEADER, map(_row, sums), num_text_columns=_NUM_TEXT_COLUMNS)


def _row(item: pb.UsageSum) -> tuple[str, ...]:
    counts = item.counts
    numbers = (
        counts.requests,
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.completion_tokens,
    )
    texts = (format_time(item.start_time), item.project, item.model)
    cost = f"{item.cost_nanos / 1e9:,.6f}"
    return (*texts, *(f"{number:,}" for number in numbers), cost)
