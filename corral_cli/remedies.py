"""What a call to a server fails with, as one line with its remedy."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from corral_cli.naming import command_name
from svc_kit.errors import DomainError, Unauthenticated, Unavailable
from svc_kit.rpc_client import translate_errors

CONNECT_PATIENCE_S = 5.0


@contextmanager
def explain_failures(target: str) -> Iterator[None]:
    """Around calls to the server at `target`. Raises click.ClickException."""
    try:
        with translate_errors():
            yield
    except Unauthenticated as error:
        raise click.ClickException(
            f"{error.message} Give a key with --api-key or CORRAL_API_KEY."
        ) from error
    except Unavailable as error:
        raise click.ClickException(
            f"no server answers at {target}. Start one in another terminal: {command_name()} up"
        ) from error
    except DomainError as error:
        raise click.ClickException(error.message) from error
