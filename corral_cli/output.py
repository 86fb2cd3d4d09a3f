"""Output of commands: text, listings as text or JSON, progress bars of transfers.

All text goes through `escape`, because names, models' answers and errors come from servers: a
terminal would obey the control characters in them.
"""

import asyncio
import csv
import functools
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from svc_kit.tasks import open_in_thread
from svc_kit.terminal import escape

MessageT = TypeVar("MessageT", bound=Message)
_LAYOUT: Final = "\n\t\u200c\u200d"
"""Of texts: also the joiners of letters and of emoji, which names have no use for."""
_CLEAR: Final = "\033[H\033[2J"


def echo(text: object = "", *, err: bool = False, nl: bool = True, dim: bool = False) -> None:
    """Print a text, of several lines if it has them."""
    escaped = escape(str(text), kept=_LAYOUT)
    click.echo(click.style(escaped, dim=True) if dim else escaped, err=err, nl=nl)


def echo_line(text: str, *, err: bool = False) -> None:
    """Print a text in one line, also if a name in it contains the end of a line."""
    click.echo(escape(text), err=err)


def echo_styled(text: str) -> None:
    """Print a text with styles of ours, whose parts are escaped. click omits the styles if the
    output is not a terminal."""
    click.echo(text)


def redraw(text: str) -> None:
    """Print a text instead of everything that the terminal shows."""
    click.echo(_CLEAR + escape(text, kept=_LAYOUT))


def rewrite_line(text: str) -> None:
    """Print a text instead of the last line, on stderr, and stay in that line."""
    click.echo("\r" + escape(text), err=True, nl=False)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--json` to a listing; the command receives it as `as_json`."""
    text = "Print JSON, with the fields of the gRPC API."
    return click.option("--json", "as_json", is_flag=True, help=text)(command)


FORMATS: Final = ("text", "json", "csv")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
"""With these a spreadsheet begins a formula, or splits a cell."""


def format_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--format`, and `--json` for one of them; the command receives `listing_format`."""

    @json_option
    @click.option(
        "--format",
        "listing_format",
        type=click.Choice(FORMATS),
        default="text",
        show_default=True,
        help="json and csv have the fields of the gRPC API.",
    )
    @functools.wraps(command)
    def with_format(*args: Any, as_json: bool, listing_format: str, **kwargs: Any) -> Any:
        chosen = "json" if as_json else listing_format
        return command(*args, listing_format=chosen, **kwargs)

    return with_format


def object_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--json` to a command that prints one object; it receives `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def as_object(message: Message) -> dict[str, Any]:
    """A message as a JSON object with the names of the protos, without unset optional fields."""
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def print_list(
    messages: Iterable[MessageT],
    as_json: bool,
    lines: Callable[[Sequence[MessageT]], Iterable[str]],
) -> None:
    """Print messages as the lines that `lines` makes of them, or as one JSON array."""
    listed = list(messages)
    if as_json:
        echo(json.dumps([as_object(message) for message in listed], indent=2))
        return
    for line in lines(listed):
        echo_line(line)


def print_csv(messages: Iterable[Message], kind: type[Message]) -> None:
    """Print messages of a type as CSV (RFC 4180), with a header of its fields. A text that a
    spreadsheet would calculate gets an apostrophe before it."""
    columns = list(_columns(kind.DESCRIPTOR))
    writer = csv.writer(sys.stdout, lineterminator="\r\n")
    writer.writerow(map(".".join, columns))
    for message in messages:
        content = as_object(message)
        writer.writerow([escape(_cell(content, column)) for column in columns])


def _columns(kind: Any) -> Iterator[tuple[str, ...]]:
    """The paths of the fields of a message, by its descriptor, and of those in it."""
    for field in kind.fields:
        inner = field.message_type
        if inner is None or field.is_repeated or inner.full_name.startswith("google.protobuf."):
            yield (field.name,)
        else:
            yield from ((field.name, *path) for path in _columns(inner))


def _cell(content: Any, path: Sequence[str]) -> str:
    for name in path:
        content = content.get(name, "") if isinstance(content, dict) else ""
    text = content if isinstance(content, str) else json.dumps(content)
    return f"'{text}" if text.startswith(_FORMULA) else text


def transfer_bar(num_bytes: int, label: str) -> AbstractContextManager[Any]:
    """A progress bar on stderr, if that is a terminal; `update(n)` adds n bytes."""
    return click.progressbar(
        length=num_bytes, label=escape(label), file=sys.stderr, hidden=not sys.stderr.isatty()
    )


async def read_chunks(file: Path, chunk_bytes: int) -> AsyncIterator[bytes]:
    """Read a file for an upload, with a progress bar."""
    with (
        await open_in_thread(lambda: file.open("rb")) as source,
        transfer_bar(os.fstat(source.fileno()).st_size, file.name) as bar,
    ):
        while chunk := await asyncio.to_thread(source.read, chunk_bytes):
            yield chunk
            bar.update(len(chunk))


def format_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, num_text_columns: int | None = None
) -> list[str]:
    """The lines of a table. Columns after the first `num_text_columns` are numbers, aligned to the
    right; default: all are text."""
    cells = [[escape(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    num_text = len(header) if num_text_columns is None else num_text_columns
    return [
        "  ".join(
            cell.ljust(width) if column < num_text else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
