"""Validation and paging shared by several requests."""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from google.protobuf.duration_pb2 import Duration

from svc_kit.errors import InvalidField, OutOfRange, TokenOutOfVocabulary, TooLong
from svc_kit.rpc.page_tokens import PageTokens

MAX_DURATION_S = 315_576_000_000  # protobuf's limit for a Duration


def check_range(field: str, value: float, minimum: float, maximum: float) -> None:
    """Raise `OutOfRange` unless `minimum` <= `value` <= `maximum`."""
    if not minimum <= value <= maximum:
        raise OutOfRange(field=field, value=value, minimum=minimum, maximum=maximum)


def to_seconds(field: str, span: Duration, minimum: float) -> float:
    """Convert a duration to seconds; it may be longer than a `timedelta` can be.

    Raises `OutOfRange` if it is shorter than `minimum`.
    """
    length_s = span.seconds + span.nanos / 1e9
    check_range(field, length_s, minimum, MAX_DURATION_S)
    return length_s


def check_tokens(field: str, tokens: Sequence[int], vocabulary_size: int) -> None:
    """Raise `TokenOutOfVocabulary` for the first token outside the vocabulary."""
    if tokens and (min(tokens) < 0 or max(tokens) >= vocabulary_size):
        bad = next(token for token in tokens if not 0 <= token < vocabulary_size)
        raise TokenOutOfVocabulary(field=field, token=bad, vocabulary_size=vocabulary_size)


def check_bytes(field: str, text: str, limit: int) -> None:
    """Raise `TooLong` if a text has more than `limit` bytes in UTF-8."""
    size = len(text.encode())
    if size > limit:
        raise TooLong(field=field, length=size, limit=limit, unit="bytes")


def check_count(field: str, items: Sequence[object], limit: int) -> None:
    """Raise `TooLong` if there are more than `limit` items."""
    if len(items) > limit:
        raise TooLong(field=field, length=len(items), limit=limit)


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
    between two calls do not shift the others. Raises `OutOfRange` for a negative size and
    `InvalidField` for a token of another list than `binding`.
    """
    if request.page_size < 0:
        raise OutOfRange(field="page_size", value=request.page_size, minimum=0)
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
