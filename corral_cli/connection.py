"""Calls to services, and hints when a service does not answer."""

import asyncio
import functools
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import grpc.aio
from google.protobuf.message import Message

from svc_kit.errors import DomainError, Unauthenticated, UpstreamUnavailable
from svc_kit.rpc.client import ReplyT, call_unary, open_method, translate_errors
from svc_kit.rpc.replica_channel import open_replica_channel
from svc_kit.settings.groups import UpstreamTlsSettings
from svc_kit.terminal import escape

CALL_TIMEOUT_S: Final = 5.0
_MAX_PAGES: Final = 100_000
ResultT = TypeVar("ResultT")


def command_name() -> str:
    """Return `corral` if it is on the PATH, else its path, relative to the working directory if it
    is inside it.
    """
    program = Path(sys.argv[0])
    installed = shutil.which("corral")
    if program.name != "corral" or (installed and Path(installed).resolve() == program.resolve()):
        return "corral"
    try:
        return str(program.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(program)


_TLS: Final = "corral_cli.connection.tls"


def tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options of the whole `corral` command for services with TLS. All connections of the
    subcommand use them."""

    def path_option(name: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        variable = "CORRAL_" + name.strip("-").replace("-", "_").upper()
        path = click.Path(exists=True, dir_okay=False, path_type=Path)
        return click.option(name, type=path, envvar=variable, help=text)

    @path_option("--ca-file", "PEM: the authorities of services with TLS. Unset: no TLS.")
    @path_option("--certificate-file", "PEM: a client certificate, for services with mTLS.")
    @path_option("--key-file", "PEM: the private key of the client certificate.")
    @functools.wraps(command)
    def with_tls(
        *args: Any,
        ca_file: Path | None,
        certificate_file: Path | None,
        key_file: Path | None,
        **kwargs: Any,
    ) -> Any:
        if (certificate_file is None) != (key_file is None) or (certificate_file and not ca_file):
            text = "--certificate-file needs --key-file and --ca-file, and --key-file needs both"
            raise click.UsageError(text)
        if ca_file is not None:
            click.get_current_context().meta[_TLS] = UpstreamTlsSettings(
                ca_file=ca_file, certificate_file=certificate_file, key_file=key_file
            )
        return command(*args, **kwargs)

    return with_tls


def command_tls() -> UpstreamTlsSettings | None:
    """What the options of `tls_options` say."""
    tls: UpstreamTlsSettings | None = click.get_current_context().meta.get(_TLS)
    return tls


@dataclass(frozen=True)
class Connection:
    """The address of a running service, or those of its replicas, and the API key or service token
    for it.

    Each call opens a channel of its own. Failures are raised as click.ClickException.
    """

    target: str
    credential: str | None = field(repr=False)
    tls: UpstreamTlsSettings | None = None

    def open(self) -> grpc.aio.Channel:
        """Open a channel. The caller closes it."""
        return open_replica_channel(
            self.target, token=self.credential, tls=self.tls, outlives_engines=True
        )

    def run(self, call: Callable[[grpc.aio.Channel], Awaitable[ResultT]]) -> ResultT:
        """Run `call` on a channel."""

        async def connect_and_call() -> ResultT:
            async with self.open() as channel:
                with explain_failures(self.target):
                    return await call(channel)

        return asyncio.run(connect_and_call())

    def call(
        self, request: Message, reply: type[ReplyT], timeout_s: float | None = CALL_TIMEOUT_S
    ) -> ReplyT:
        """Call the unary method that has this type of request, and return its reply."""

        async def call(channel: grpc.aio.Channel) -> ReplyT:
            method = open_method(channel, type(request))
            return await call_unary(method, request, reply, timeout=timeout_s)

        return self.run(call)

    def list_all(
        self, request: Message, field: str, timeout_s: float | None = CALL_TIMEOUT_S
    ) -> list[Any]:
        """Return the objects of all pages of a list; the parameters are as in `list_all`."""

        async def collect(channel: grpc.aio.Channel) -> list[Any]:
            method = open_method(channel, type(request))
            return [item async for item in list_all(method, request, field, timeout_s)]

        return self.run(collect)


async def list_all(
    method: Callable[..., Awaitable[Any]],
    request: Any,
    field: str,
    timeout_s: float | None = CALL_TIMEOUT_S,
) -> AsyncIterator[Any]:
    """Yield the objects of all pages of a list; `field` is the repeated field of the response."""
    for _ in range(_MAX_PAGES):
        page = await method(request, timeout=timeout_s)
        for item in getattr(page, field):
            yield item
        if not page.next_page_token:
            return
        if page.next_page_token == request.page_token:
            break
        request.page_token = page.next_page_token
    raise click.ClickException("the server repeats the pages of a list without an end")


@contextmanager
def explain_failures(target: str) -> Iterator[None]:
    """Convert errors of calls to the server at `target` to click.ClickException."""
    try:
        with translate_errors(target):
            yield
    except DomainError as error:
        raise click.ClickException(escape(_message(error, target))) from error


def _message(error: DomainError, target: str) -> str:
    match error:
        case Unauthenticated():
            return (
                f"{error.message} Give a key with --api-key or CORRAL_API_KEY or, on the server,"
                " --data-dir FOLDER, whose service token is used (--service-token-file: another)."
            )
        # The server itself may report that a service behind it is unavailable, hence the check.
        case UpstreamUnavailable() if error.service == target:
            name = command_name()
            return (
                f"no server answers at {target}. Start one in another terminal: {name} up"
                f" (if it has TLS, give its authorities: {name} --ca-file FILE ...)"
            )
        case _:
            return error.message
