"""Reads an export: one OpenAI object per line as JSON, in any order."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import click
import orjson

from svc_kit.errors import DomainError, InvalidArgument, Unauthenticated, Unavailable
from svc_kit.rpc.client import translate_errors
from svc_kit.terminal import escape

Json = dict[str, Any]
KINDS = {
    "assistant": "assistants",
    "thread": "threads",
    "thread.message": "messages",
    "file": "files",
    "vector_store": "stores",
    "vector_store.file": "store files",
}
"""Kinds of objects in an export, by their field `object`. Others are skipped."""
MAX_LINE_BYTES = 64 * 1024 * 1024
COUNTED_KINDS = ("assistants", "threads", "messages", "files", "vector stores")
"""Kinds that exports and imports count."""


class Location(NamedTuple):
    """Position of an object in an export."""

    file: Path
    offset: int
    created_at: int


@dataclass
class Export:
    """Locations of the objects of an export by id, in order. Of duplicates the first counts."""

    assistants: dict[str, Location] = field(default_factory=dict)
    threads: dict[str, Location] = field(default_factory=dict)
    files: dict[str, Location] = field(default_factory=dict)
    messages: dict[str, dict[str, Location]] = field(default_factory=lambda: defaultdict(dict))
    """By thread id, then message id."""
    stores: dict[str, Location] = field(default_factory=dict)
    store_files: dict[str, dict[str, Location]] = field(default_factory=lambda: defaultdict(dict))
    """By vector store id, then file id."""
    others: list[str] = field(default_factory=list)
    """Ids of objects of other kinds."""

    def messages_of(self, thread_id: str) -> list[Json]:
        """Read the messages of a thread, oldest first."""
        locations = list(self.messages.get(thread_id, {}).values())
        if (_direction(locations) or self._direction) < 0:
            locations.reverse()  # the stable sort below keeps the order within a second
        return [read(each) for each in sorted(locations, key=lambda each: each.created_at)]

    def files_of(self, store_id: str) -> list[Json]:
        return [read(location) for location in self.store_files.get(store_id, {}).values()]

    @property
    def orphan_messages(self) -> list[str]:
        """Ids of the messages whose thread is not in the export."""
        missing = self.messages.keys() - self.threads.keys()
        return [message for thread in sorted(missing) for message in self.messages[thread]]

    @property
    def orphan_files(self) -> list[str]:
        """Ids of the files whose vector store is not in the export."""
        missing = self.store_files.keys() - self.stores.keys()
        return [file for store in sorted(missing) for file in self.store_files[store]]

    @cached_property
    def _direction(self) -> int:
        """Direction of most threads, for a thread whose messages are all of the same second."""
        return sum(_direction(list(each.values())) for each in self.messages.values())


def _direction(locations: Sequence[Location]) -> int:
    """Return 1 for oldest first, -1 for newest first (as in lists), 0 if unknown."""
    if not locations:
        return 0
    first, last = locations[0].created_at, locations[-1].created_at
    return (first < last) - (first > last)


def index_export(path: Path) -> Export:
    """Index an export: a file, or a folder of files `*.jsonl`. Raises click.ClickException."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise click.ClickException(f"{path} has no file that ends with .jsonl")
    export = Export()
    for file in files:
        for number, offset, line in _lines(file):
            _add(export, file, offset, _parse(file, number, line))
    return export


def read(location: Location) -> Json:
    """Read an object of the index."""
    with location.file.open("rb") as source:
        source.seek(location.offset)
        obj: Json = orjson.loads(source.readline())
    return obj


class InvalidObject(click.ClickException):
    """The server refuses an object of the export, or it cannot be read as one."""


@contextmanager
def explain_object_errors(obj: Json) -> Iterator[None]:
    """Convert errors that an object causes to click.ClickException with the object's id, to
    InvalidObject if others may be imported."""
    try:
        with translate_errors():
            yield
    except (Unauthenticated, Unavailable):  # not caused by the object
        raise
    except DomainError as error:
        kind = InvalidObject if isinstance(error, InvalidArgument) else click.ClickException
        raise kind(escape(f"{obj['id']}: {error.message}")) from error
    except (AttributeError, KeyError, TypeError) as error:
        text = escape(f"{obj['id']}: not a valid OpenAI object")
        raise InvalidObject(text) from error


def _add(export: Export, file: Path, offset: int, obj: Json) -> None:
    created_at = obj.get("created_at")
    location = Location(file, offset, created_at if isinstance(created_at, int) else 0)
    match KINDS.get(str(obj.get("object"))):
        case None:
            export.others.append(obj["id"])
        case "messages":
            export.messages[str(obj.get("thread_id"))].setdefault(obj["id"], location)
        case "store files":
            export.store_files[str(obj.get("vector_store_id"))].setdefault(obj["id"], location)
        case kind:
            getattr(export, kind).setdefault(obj["id"], location)


def _lines(file: Path) -> Iterator[tuple[int, int, bytes]]:
    offset = 0
    with file.open("rb") as source:
        lines = iter(lambda: source.readline(MAX_LINE_BYTES + 1), b"")
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_LINE_BYTES:
                problem = f"longer than {MAX_LINE_BYTES} bytes"
                raise click.ClickException(f"{file}, line {number}: {problem}")
            if line.strip():
                yield number, offset, line
            offset += len(line)


def _parse(file: Path, number: int, line: bytes) -> Json:
    try:
        obj = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise click.ClickException(f"{file}, line {number}: {error}") from None
    if not isinstance(obj, dict) or not isinstance(obj.get("id"), str):
        raise click.ClickException(f"{file}, line {number}: not an object with an id")
    return obj
