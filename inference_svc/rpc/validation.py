"""Validation and paging shared by several requests."""

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from svc_kit.errors import InvalidField, OutOfRange, TokenOutOfVocabulary, TooLong

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
ItemT = TypeVar("ItemT")


def page(items: Sequence[ItemT], size: int, token: str) -> tuple[Sequence[ItemT], str]:
    """Return the items of a page and the token of the next page, which is empty at the end.

    Raises `OutOfRange` for a negative size and `InvalidField` for an invalid token.
    """
    if size < 0:
        raise OutOfRange(field="page_size", value=size, minimum=0)
    if token and not (token.isascii() and token.isdigit()):
        raise InvalidField(field="page_token", problem="not a token of this list")
    start = int(token[:9] or 0)
    end = start + min(size or MAX_PAGE, MAX_PAGE)
    return items[start:end], str(end) if end < len(items) else ""
