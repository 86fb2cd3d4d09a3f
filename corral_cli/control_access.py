"""Options of commands that call the control service."""

import functools
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any, Final

import click
from google.protobuf.timestamp_pb2 import Timestamp

from corral_cli.connection import CONTROL_TARGET, Connection, api_key_option, target_option
from svc_kit.settings.groups import read_secret

DAYS: Final = click.IntRange(min=1, max=36500)
"""A number of days. The limit keeps dates before and after now within the range of datetime."""


def control_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the control service; the command receives them as `control`."""

    @target_option(CONTROL_TARGET, "Address of the control service (gRPC).")
    @api_key_option("An API key with the scope admin, if the server requires one.")
    @click.option(
        "--service-token-file",
        envvar="CORRAL_SERVICE_TOKEN_FILE",
        type=click.Path(path_type=Path),
        help="Instead of a key: the file service-token in the data folder, readable by the"
        " installation's owner.",
    )
    @functools.wraps(command)
    def with_access(
        *args: Any, target: str, api_key: str | None, service_token_file: Path | None, **kwargs: Any
    ) -> Any:
        credential = api_key
        if credential is None and service_token_file is not None:
            credential = read_secret(service_token_file)
        return command(*args, control=Connection(target, credential), **kwargs)

    return with_access


def format_time(stamp: Timestamp) -> str:
    """Format a time to the minute, in UTC."""
    return stamp.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M")
