"""Pagination: windows of queries, and pages, whose tokens contain their last id."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import accumulate, takewhile
from typing import Any, Final, Generic, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute

from control_svc.base.ids import is_id
from svc_kit.errors import InvalidField
from svc_kit.rpc.page_tokens import PageTokens as SignedTokens

DEFAULT_PAGE: Final = 20
"""Default page size of most lists, as in OpenAI's API."""
PAGE_BYTES: Final = 16 * 1024 * 1024
"""Limit of the texts of a page whose objects may be large. Fits into a gRPC message."""


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


ItemT = TypeVar("ItemT", bound=_HasId)


@dataclass(frozen=True)
class Window:
    """The part of a list, ordered by id, that a query reads."""

    limit: int
    """Maximum number of objects; at least 1."""
    after: str = ""
    """Read the objects after this id, in list order; empty to read from the start."""
    newest_first: bool = True
    before: str = ""
    """Read the objects just before this id; empty to read up to the end."""


@dataclass(frozen=True)
class Page(Generic[ItemT]):
    """The objects of a page, and the token of the next page; empty at the end."""

    items: Sequence[ItemT]
    next_token: str


@dataclass(frozen=True, kw_only=True)
class ListWindow(Window):
    """The window of a page: one object more than the page has, to detect the end of the list."""

    make_token: Callable[[str], str]
    """Returns the page token of the list for the id of the last object of a page."""

    def page(self, items: Sequence[ItemT], max_bytes: int | None = None) -> Page[ItemT]:
        """Build the page from the objects of the window.

        `max_bytes` limits the size of the texts in a page that has more than one object.
        """
        count = min(len(items), self.limit - 1)
        if max_bytes is not None:
            # Before a cursor, the objects furthest from it are left out.
            nearest_first = reversed(items) if self.before else iter(items)
            count = min(count, _num_fitting(nearest_first, max_bytes))
        if count == len(items):
            return Page(items, "")
        items = items[len(items) - count :] if self.before else items[:count]
        return Page(items, self.make_token(items[-1].id))


@dataclass(frozen=True)
class PageRequest:
    """Page size and cursors of a list request."""

    size: int = 0
    token: str = ""
    after: str = ""
    newest_first: bool = True
    before: str = ""

    def check_cursors(self, prefix: str, kind: str) -> None:
        """Raise InvalidField unless the cursors are ids with this prefix."""
        for field, cursor in (("after", self.after), ("before", self.before)):
            if cursor and not is_id(cursor, prefix):
                raise InvalidField(field=field, problem=f"it is not the id of {kind}")


class PageTokens(SignedTokens):
    """Pages of lists in the database. Page tokens are signed with the key of the installation."""

    def window(
        self, page_request: PageRequest, binding: Sequence[str], max_size: int
    ) -> ListWindow:
        """The window to read.

        `binding` identifies the list: project, name, filters. Raises InvalidField
        for the token of another list or for conflicting cursors.
        """
        if page_request.token and page_request.after:
            raise InvalidField(field="after", problem="it cannot be combined with page_token")
        ordered = (*binding, "newest first" if page_request.newest_first else "oldest first")
        after = page_request.after
        if page_request.token:
            after = self.read(page_request.token, ordered)
        if page_request.before and (page_request.token or page_request.after):
            raise InvalidField(field="before", problem="it cannot be combined with another cursor")
        return ListWindow(
            min(page_request.size or max_size, max_size) + 1,
            after,
            page_request.newest_first,
            page_request.before,
            make_token=lambda last_id: self.make(last_id, ordered),
        )


def _num_fitting(objects: Iterator[object], max_bytes: int) -> int:
    """The number of objects that fit into `max_bytes`; at least 1."""
    sizes = accumulate(map(_text_bytes, objects))
    return max(1, sum(1 for _ in takewhile(lambda size: size <= max_bytes, sizes)))


def _text_bytes(value: object) -> int:
    """The size of all texts in an object, nested ones included."""
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


RowT = TypeVar("RowT")
QueryT = TypeVar("QueryT", bound=sa.Select[*tuple[Any, ...]])


def apply_window(query: QueryT, column: InstrumentedAttribute[str], window: Window) -> QueryT:
    """Limit a query to a window of a list that is ordered by id; use with `restore_order`."""
    return apply_cursors(query, column, window, window.after or None, window.before or None)


def apply_cursors(
    query: QueryT, column: InstrumentedAttribute[Any], window: Window, after: Any, before: Any
) -> QueryT:
    """Limit a query to a window of a list that is ordered by `column`; the cursors are its values.

    With `before` the rows are in reverse list order, nearest to the cursor first.
    """
    is_descending = window.newest_first
    if after is not None:
        query = query.where(column < after if is_descending else column > after)
    if before is not None:
        query = query.where(column > before if is_descending else column < before)
        is_descending = not is_descending
    return query.order_by(column.desc() if is_descending else column).limit(window.limit)


def restore_order(rows: Sequence[RowT], window: Window) -> list[RowT]:
    """Put the rows of a window into list order."""
    return list(reversed(rows)) if window.before else list(rows)
