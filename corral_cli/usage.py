"""`corral usage`: tokens and requests by project, model and period."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click
import grpc.aio
from corral.control.v1 import usage_service_pb2 as pb
from corral.control.v1.usage_service_pb2_grpc import UsageServiceStub
from google.protobuf.timestamp_pb2 import Timestamp

from corral_cli.connection import CONNECT_PATIENCE_S
from corral_cli.control_access import DAYS, ControlAccess, control_options, moment

if TYPE_CHECKING:  # the stub over an aio channel has a name for type checkers only
    from corral.control.v1.usage_service_pb2_grpc import UsageServiceAsyncStub

_HEAD = ("from (UTC)", "project", "model", "requests", "prompt", "cached", "completion")
_NUM_TEXTS = 3
"""Columns that are no numbers."""


@click.command("usage")
@click.option("--project", default="", help="Only this project. Default: all.")
@click.option("--model", default="", help="Only this model. Default: all.")
@click.option("--days", type=DAYS, default=30, show_default=True)
@click.option(
    "--by", "period", type=click.Choice(["day", "hour"]), default="day", show_default=True
)
@control_options
def usage(control: ControlAccess, project: str, model: str, days: int, period: str) -> None:
    """Show requests and tokens by project and model, oldest first."""
    start = Timestamp()
    start.FromDatetime(datetime.now(UTC) - timedelta(days=days))
    request = pb.ListUsageRequest(
        project=project, model=model, start_time=start, period=f"PERIOD_{period.upper()}"
    )

    async def call(channel: grpc.aio.Channel) -> list[pb.UsageSum]:
        stub: UsageServiceAsyncStub = UsageServiceStub(channel)
        found: list[pb.UsageSum] = []
        while True:
            page = await stub.ListUsage(request, timeout=CONNECT_PATIENCE_S)
            found += page.sums
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    for line in table(control.ask(call)):
        click.echo(line)


def table(sums: Iterable[pb.UsageSum]) -> list[str]:
    """Aligned lines under a head; numbers to the right."""
    rows = [_HEAD, *map(_row, sums)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_aligned(row, widths) for row in rows]


def _row(found: pb.UsageSum) -> tuple[str, ...]:
    counts = found.counts
    numbers = (
        counts.requests,
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.completion_tokens,
    )
    texts = (moment(found.start_time), found.project, found.model)
    return (*texts, *(f"{number:,}" for number in numbers))


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if number < _NUM_TEXTS else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
