"""`corral audit`: what operators did."""

from datetime import UTC, datetime, timedelta

import click
from corral.control.v1 import audit_service_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from corral_cli.access import DAYS, control_options
from corral_cli.connection import Connection
from corral_cli.output import format_option, print_csv, print_list


@click.command("audit")
@click.option("--key", "actor", default="", help="Only acts of this key, by its id. Default: all.")
@click.option("--object", "object_id", default="", help="Only acts on this object, by its id.")
@click.option("--days", type=DAYS, default=30, show_default=True)
@format_option
@control_options
def audit(control: Connection, actor: str, object_id: str, days: int, listing_format: str) -> None:
    """List what operators did: when, who, from where, and what. Newest first."""
    start = Timestamp()
    start.FromDatetime(datetime.now(UTC) - timedelta(days=days))
    request = pb.ListAuditEventsRequest(actor=actor, target=object_id, start_time=start)
    events = control.list_all(request, "events")
    if listing_format == "csv":
        print_csv(events, pb.AuditEvent)
    else:
        print_list(events, listing_format == "json", lambda listed: map(describe, listed))


def describe(event: pb.AuditEvent) -> str:
    """Format an event as one line."""
    time = event.time.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M:%S")
    method = f"{event.method} refused: {event.refusal}" if event.refusal else event.method
    parts = (time, event.actor, event.address or "local", method, event.target, event.request)
    return "    ".join(parts)
