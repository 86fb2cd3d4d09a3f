"""Which server a command asks: the option that every command has for it."""

from collections.abc import Callable
from typing import Any, Final

import click

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
