"""What a call to a server fails with, as one line with its remedy."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from corral_cli.naming import command_name
from svc_kit.errors import DomainError, Unauthenticated, UpstreamUnavailable
from svc_kit.rpc_client import translate_errors

CONNECT_PATIENCE_S = 5.0


@contextmanager
def explain_failures(target: str) -> Iterator[None]:
    """Around calls to the server at `target`. Raises click.ClickException."""
    try:
        with translate_errors(target):
            yield
    except DomainError as error:
        raise click.ClickException(_line(error, target)) from error


def _line(error: DomainError, target: str) -> str:
    match error:
        case Unauthenticated():
            return f"{error.message} Give a key with --api-key or CORRAL_API_KEY."
        # A server that answers may be without another one, or have no time just now: it says so.
        case UpstreamUnavailable() if error.service == target:
            start = f"{command_name()} up"
            return f"no server answers at {target}. Start one in another terminal: {start}"
        case _:
            return error.message
