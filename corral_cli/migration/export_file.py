"""Reads an export: JSON lines of OpenAI's objects, in any order."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import click
import orjson

from svc_kit.errors import DomainError, Unauthenticated, Unavailable
from svc_kit.rpc.client import translate_errors

Json = dict[str, Any]
KINDS = {
    "assistant": "assistants",
    "thread": "threads",
    "thread.message": "messages",
    "file": "files",
    "vector_store": "stores",
    "vector_store.file": "store files",
}
"""Of the objects that an export can have, by their `object`; others are passed over."""
COUNTED = ("assistants", "threads", "messages", "files", "vector stores")
"""Kinds that exports and imports count."""


class Place(NamedTuple):
    """Where a line is."""

    file: Path
    offset: int
    created_at: int


@dataclass
class Export:
    """What an export has, in order, by id: of an object that stands there twice, the first."""

    assistants: dict[str, Place] = field(default_factory=dict)
    threads: dict[str, Place] = field(default_factory=dict)
    files: dict[str, Place] = field(default_factory=dict)
    messages: dict[str, dict[str, Place]] = field(default_factory=lambda: defaultdict(dict))
    """By the id of their thread."""
    stores: dict[str, Place] = field(default_factory=dict)
    store_files: dict[str, dict[str, Place]] = field(default_factory=lambda: defaultdict(dict))
    """By the id of their store."""
    num_others: int = 0
    """Lines with objects of other kinds."""

    def messages_of(self, thread_id: str) -> list[Json]:
        """The messages of a thread, oldest first."""
        places = list(self.messages.get(thread_id, {}).values())
        if (_direction(places) or self._direction) < 0:
            places.reverse()  # sorting leaves those of one second as they stand
        return [read(place) for place in sorted(places, key=lambda place: place.created_at)]

    def files_of(self, store_id: str) -> list[Json]:
        """The files of a vector store."""
        return [read(place) for place in self.store_files.get(store_id, {}).values()]

    @property
    def num_messages(self) -> int:
        """How many there are in all threads."""
        return sum(len(self.messages.get(thread, ())) for thread in self.threads)

    @property
    def num_lost(self) -> int:
        """How many messages are of threads that are not there."""
        return sum(map(len, self.messages.values())) - self.num_messages

    @property
    def num_lost_files(self) -> int:
        """How many files are of vector stores that are not there."""
        lost = self.store_files.keys() - self.stores.keys()
        return sum(len(self.store_files[store]) for store in lost)

    @cached_property
    def _direction(self) -> int:
        """That of most threads, for those whose own messages are all of one second."""
        return sum(_direction(list(places.values())) for places in self.messages.values())


def _direction(places: Sequence[Place]) -> int:
    """1: oldest first; -1: newest first, as in lists; 0: unknown."""
    if not places:
        return 0
    first, last = places[0].created_at, places[-1].created_at
    return (first < last) - (first > last)


def look_through(path: Path) -> Export:
    """An export that is a file, or a folder of files `*.jsonl`. Raises click.ClickException."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise click.ClickException(f"{path} has no file that ends with .jsonl")
    export = Export()
    for file in files:
        for number, offset, line in _lines(file):
            _note(export, Place(file, offset, 0), _parsed(file, number, line))
    return export


def read(place: Place) -> Json:
    """The object of a line that has been looked through."""
    with place.file.open("rb") as opened:
        opened.seek(place.offset)
        found: Json = orjson.loads(opened.readline())
    return found


@contextmanager
def naming(found: Json) -> Iterator[None]:
    """Around what is done with an object: what is wrong with it is said with its id.

    Raises click.ClickException.
    """
    try:
        with translate_errors():
            yield
    except (Unauthenticated, Unavailable):  # of every object, and explained elsewhere
        raise
    except DomainError as error:
        raise click.ClickException(f"{found['id']}: {error.message}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise click.ClickException(f"{found['id']}: it has not the shape of OpenAI's") from error


def _note(export: Export, place: Place, found: Json) -> None:
    kind = KINDS.get(str(found.get("object")))
    created_at = found.get("created_at")
    place = place._replace(created_at=created_at if isinstance(created_at, int) else 0)
    if kind is None:
        export.num_others += 1
    elif kind == "messages":
        export.messages[str(found.get("thread_id"))].setdefault(found["id"], place)
    elif kind == "store files":
        export.store_files[str(found.get("vector_store_id"))].setdefault(found["id"], place)
    else:
        getattr(export, kind).setdefault(found["id"], place)


def _lines(file: Path) -> Iterator[tuple[int, int, bytes]]:
    offset = 0
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            if line.strip():
                yield number, offset, line
            offset += len(line)


def _parsed(file: Path, number: int, line: bytes) -> Json:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise click.ClickException(f"{file}, line {number}: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("id"), str):
        raise click.ClickException(f"{file}, line {number}: it is no object with an id")
    return found
