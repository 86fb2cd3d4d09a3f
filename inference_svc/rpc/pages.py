"""Pages of lists in memory."""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from svc_kit.errors import InvalidField
from svc_kit.rpc.page_tokens import PageTokens

MAX_PAGE = 1000
PAGE_TOKENS = PageTokens(b"corral.inference.v1")
"""The same key at every replica; it detects mistakes, and a position reveals nothing."""
ItemT = TypeVar("ItemT")


class _ListRequest(Protocol):
    page_size: int
    page_token: str


def page(
    binding: Sequence[str],
    items: Mapping[tuple[Any, ...], ItemT],
    request: _ListRequest,
) -> tuple[list[ItemT], str]:
    """Return a page of `items`, which are sorted by their keys, and the token of the next page.

    The token is empty at the end. It contains the last key, so objects that appear or disappear
    between two calls do not shift the others. Raises `InvalidField` for a token of
    another list than `binding`.
    """
    keys = sorted(items)
    if request.page_token:
        position = PAGE_TOKENS.read(request.page_token, binding)
        try:
            keys = keys[bisect_right(keys, tuple(json.loads(position))) :]
        except (ValueError, TypeError, RecursionError):
            raise InvalidField(field="page_token", problem="it belongs to another list") from None
    shown = keys[: min(request.page_size or MAX_PAGE, MAX_PAGE)]
    next_token = PAGE_TOKENS.make(json.dumps(shown[-1]), binding) if len(shown) < len(keys) else ""
    return [items[key] for key in shown], next_token
