"""Pages of lists that live in memory (AIP-158): the token is the place after the last one shown."""

from collections.abc import Sequence
from typing import TypeVar

from svc_kit.errors import InvalidField, OutOfRange

MAX_PAGE = 1000

ItemT = TypeVar("ItemT")


def page(items: Sequence[ItemT], size: int, token: str) -> tuple[Sequence[ItemT], str]:
    """The items of a page and the token of the next one, empty at the end.

    Raises `OutOfRange` for a negative size and `InvalidField` for a token that is none of ours.
    """
    if size < 0:
        raise OutOfRange(field="page_size", value=size, minimum=0)
    if token and not (token.isascii() and token.isdigit()):
        raise InvalidField(field="page_token", problem="not a token of this list")
    start = int(token[:9] or 0)
    end = start + min(size or MAX_PAGE, MAX_PAGE)
    return items[start:end], str(end) if end < len(items) else ""
