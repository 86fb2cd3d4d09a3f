"""Validation of fields. Errors name the invalid field."""

from collections.abc import Sequence

from svc_kit.errors import InvalidField, OutOfRange, TokenOutOfVocabulary, TooLong


def check_range(field: str, value: float, minimum: float, maximum: float) -> None:
    """Raise `OutOfRange` unless `minimum` <= `value` <= `maximum`."""
    if not minimum <= value <= maximum:
        raise OutOfRange(field=field, value=value, minimum=minimum, maximum=maximum)


def check_tokens(field: str, tokens: Sequence[int], vocabulary_size: int) -> None:
    """Raise `TokenOutOfVocabulary` for the first token outside the vocabulary."""
    if tokens and (min(tokens) < 0 or max(tokens) >= vocabulary_size):
        bad = next(token for token in tokens if not 0 <= token < vocabulary_size)
        raise TokenOutOfVocabulary(field=field, token=bad, vocabulary_size=vocabulary_size)


def check_bytes(field: str, text: str, limit: int) -> None:
    """Raise `TooLong` if a text has more than `limit` bytes in UTF-8, `InvalidField` for a lone
    surrogate."""
    size = count_bytes(field, text)
    if size > limit:
        raise TooLong(field=field, length=size, limit=limit, unit="bytes")


def check_count(field: str, items: Sequence[object], limit: int) -> None:
    """Raise `TooLong` if there are more than `limit` items."""
    if len(items) > limit:
        raise TooLong(field=field, length=len(items), limit=limit)


def count_bytes(field: str, text: str) -> int:
    """Return the size of a text in UTF-8. Raises `InvalidField` for a lone surrogate."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        problem = "not valid Unicode: it has a lone surrogate"
        raise InvalidField(field=field, problem=problem) from None
