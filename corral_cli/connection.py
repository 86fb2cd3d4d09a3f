"""Addresses of services in options, and hints when a service does not answer."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from svc_kit.errors import DomainError, Unauthenticated, UpstreamUnavailable
from svc_kit.rpc.client import translate_errors


def command_name() -> str:
    """`corral` where the shell finds it, else its path, short where it is below this folder."""
    program = Path(sys.argv[0])
    found = shutil.which("corral")
    if program.name != "corral" or (found and Path(found).resolve() == program.resolve()):
        return "corral"
    try:
        return str(program.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(program)


INFERENCE: Final = "127.0.0.1:50051"
CONTROL: Final = "127.0.0.1:50052"


class _Target(click.ParamType[str]):
    """An address, whatever gRPC makes of it; an empty one is a mistake, such as of a shell's
    variable that is not set."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address as it is."""
        if not value.strip():
            self.fail("it is empty; give host:port", param, ctx)
        return value


def target_option(
    default: str | None, text: str = "The gRPC address.", *, name: str = "--target"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `name`, which `text` explains."""
    shown = default is not None
    return click.option(name, type=_Target(), default=default, show_default=shown, help=text)


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
