"""Options and the client of commands that call the control service."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import grpc.aio
from google.protobuf.timestamp_pb2 import Timestamp

from corral_cli.connection import CONTROL, explain_failures, target_option
from svc_kit.rpc.client import open_channel
from svc_kit.settings.groups import read_secret

Answer = TypeVar("Answer")
DAYS: Final = click.IntRange(min=1, max=36500)
"""A span of days: a hundred years, on either side of now, are dates."""


@dataclass(frozen=True)
class ControlAccess:
    """A control service, and the credential to show it."""

    target: str
    credential: str | None = field(repr=False)

    def ask(self, call: Callable[[grpc.aio.Channel], Awaitable[Answer]]) -> Answer:
        """Connect, call and disconnect. Raises click.ClickException with the remedy."""
        return asyncio.run(self._ask(call))

    async def _ask(self, call: Callable[[grpc.aio.Channel], Awaitable[Answer]]) -> Answer:
        async with open_channel(self.target, token=self.credential) as channel:
            with explain_failures(self.target):
                return await call(channel)


def control_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options for the control service; the command receives them as `control`."""

    @target_option(CONTROL, "Its gRPC address.")
    @click.option(
        "--api-key", envvar="CORRAL_API_KEY", help="A key with the scope admin, where one is asked."
    )
    @click.option(
        "--service-token-file",
        envvar="CORRAL_SERVICE_TOKEN_FILE",
        type=click.Path(path_type=Path),
        help="Instead of a key: service-token in the data folder, for the installation's owner.",
    )
    @functools.wraps(command)
    def with_access(
        *args: Any, target: str, api_key: str | None, service_token_file: Path | None, **kwargs: Any
    ) -> Any:
        credential = api_key
        if credential is None and service_token_file is not None:
            credential = read_secret(service_token_file)
        return command(*args, control=ControlAccess(target, credential), **kwargs)

    return with_access


def moment(stamp: Timestamp) -> str:
    """A time as people read it, in UTC."""
    return stamp.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M")
