"""Pagination: windows of queries, pages, and page tokens.

A token is the last id of a page, signed together with the project, the list and its filters, so
that it is refused for any other list.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import accumulate, takewhile
from typing import Any, Final, Generic, Protocol, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute

from control_svc.base.ids import is_id
from svc_kit.errors import InvalidField, OutOfRange

DEFAULT_PAGE: Final = 20
"""Of most lists, as at OpenAI."""
PAGE_BYTES: Final = 16 * 1024 * 1024
"""Of the texts of a page whose objects may have long ones: a message between services has room for
them."""
_MAC_BYTES: Final = 16


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


ItemT = TypeVar("ItemT", bound=_HasId)


@dataclass(frozen=True)
class Window:
    """A part of a list that is ordered by id."""

    limit: int
    """The most objects; at least 1."""
    after: str = ""
    """The id before the window, in the chosen order; empty: from the start."""
    newest_first: bool = True
    before: str = ""
    """The id after the window: it holds the objects just before. Empty: up to the end."""


@dataclass(frozen=True)
class Page(Generic[ItemT]):
    """The objects of a page, and the token of the next one; empty at the end."""

    items: Sequence[ItemT]
    next_token: str


@dataclass(frozen=True)
class PageRequest:
    """What a caller asks for."""

    size: int = 0
    token: str = ""
    after: str = ""
    newest_first: bool = True
    before: str = ""

    def check_cursors(self, prefix: str, kind: str) -> None:
        """That the cursors are ids of the list's objects. Raises InvalidField."""
        for field, cursor in (("after", self.after), ("before", self.before)):
            if cursor and not is_id(cursor, prefix):
                raise InvalidField(field=field, problem=f"it is not the id of {kind}")


class PageTokens:
    """Makes and reads page tokens with the installation's key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def window(self, page_request: PageRequest, binding: Sequence[str], most: int) -> Window:
        """What to read: one object more than the page has, so that its end is known.

        `binding` is what a token belongs to: the project, the list, its filters. Raises OutOfRange
        for a negative size, InvalidField for a token that was made for something else.
        """
        if page_request.size < 0:
            raise OutOfRange(field="page_size", value=page_request.size, minimum=0)
        if page_request.token and page_request.after:
            raise InvalidField(field="after", problem="it cannot stand beside a page_token")
        after = (
            self._read(page_request.token, _bound(binding, page_request))
            if page_request.token
            else page_request.after
        )
        if page_request.before and (page_request.token or page_request.after):
            raise InvalidField(field="before", problem="it cannot stand beside another cursor")
        return Window(
            min(page_request.size or most, most) + 1,
            after,
            page_request.newest_first,
            page_request.before,
        )

    def page(
        self,
        found: Sequence[ItemT],
        window: Window,
        page_request: PageRequest,
        binding: Sequence[str],
        most_bytes: int | None = None,
    ) -> Page[ItemT]:
        """The page out of what the window held; `most_bytes` bounds its texts, but for one object
        that has more. None: they are short."""
        count = min(len(found), window.limit - 1)
        if most_bytes is not None:
            # Before a cursor, the objects too many are those furthest from it.
            nearest = reversed(found) if window.before else iter(found)
            count = min(count, _num_within(nearest, most_bytes))
        if count == len(found):
            return Page(found, "")
        items = found[len(found) - count :] if window.before else found[:count]
        return Page(items, self._make(items[-1].id, _bound(binding, page_request)))

    def _make(self, last_id: str, bound: bytes) -> str:
        return base64.urlsafe_b64encode(self._sign(last_id, bound) + last_id.encode()).decode()

    def _read(self, token: str, bound: bytes) -> str:
        try:
            raw = base64.urlsafe_b64decode(token.encode("ascii"))
            last_id = raw[_MAC_BYTES:].decode("ascii")
        except (binascii.Error, ValueError):
            last_id, raw = "", b""
        if not hmac.compare_digest(raw[:_MAC_BYTES], self._sign(last_id, bound)):
            raise InvalidField(field="page_token", problem="it was not made for this list")
        return last_id

    def _sign(self, last_id: str, bound: bytes) -> bytes:
        text = bound + last_id.encode()
        return hmac.new(self._key, text, hashlib.sha256).digest()[:_MAC_BYTES]


def _num_within(objects: Iterator[object], most_bytes: int) -> int:
    """How many of the first objects have room; the first one always has."""
    sizes = accumulate(map(_text_bytes, objects))
    return max(1, sum(1 for _ in takewhile(lambda size: size <= most_bytes, sizes)))


def _text_bytes(value: object) -> int:
    """The texts of an object, wherever they are in it: most of what is sent of it."""
    match value:
        case str():
            return len(value.encode(errors="replace"))
        case bytes():
            return len(value)
        case Mapping():
            return sum(_text_bytes(each) for pair in value.items() for each in pair)
        case tuple() | list():
            return sum(map(_text_bytes, value))
        case _ if is_dataclass(value):
            return sum(_text_bytes(getattr(value, each.name)) for each in fields(value))
    return 0


def _bound(binding: Sequence[str], page_request: PageRequest) -> bytes:
    order = "newest first" if page_request.newest_first else "oldest first"
    return "".join(f"{len(part)}:{part}" for part in (*binding, order)).encode()


RowT = TypeVar("RowT")
QueryT = TypeVar("QueryT", bound=Select[*tuple[Any, ...]])


def apply_window(query: QueryT, column: InstrumentedAttribute[str], window: Window) -> QueryT:
    """The rows of a window of a list that is ordered by id; see `restore_order`."""
    return apply_cursors(query, column, window, window.after or None, window.before or None)


def apply_cursors(
    query: QueryT, column: InstrumentedAttribute[Any], window: Window, after: Any, before: Any
) -> QueryT:
    """As `apply_window`, by any column that orders the list; the cursors are values of it, or None.

    Before a cursor the rows come in the reverse of the list's order: those next to it first.
    """
    is_descending = window.newest_first
    if after is not None:
        query = query.where(column < after if is_descending else column > after)
    if before is not None:
        query = query.where(column > before if is_descending else column < before)
        is_descending = not is_descending
    return query.order_by(column.desc() if is_descending else column).limit(window.limit)


def restore_order(rows: Sequence[RowT], window: Window) -> list[RowT]:
    """The rows of a window in the list's order."""
    return list(reversed(rows)) if window.before else list(rows)
