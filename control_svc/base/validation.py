"""Validation shared by several slices. Errors name the invalid field."""

import math
import re
from collections.abc import Sized
from typing import Final

from svc_kit.errors import InvalidField, MissingField, OutOfRange, ProjectNotFound, TooLong
from svc_kit.rpc.field_limits import CONTROL_CHARACTERS

MAX_NAME_CHARACTERS: Final = 255
MAX_METADATA_PAIRS: Final = 16
MAX_METADATA_KEY_CHARACTERS: Final = 64
MAX_METADATA_VALUE_CHARACTERS: Final = 512


def check_text(field: str, text: str, limit: int = MAX_NAME_CHARACTERS) -> str:
    """Check and return a short text. Raises MissingField, TooLong or InvalidField.

    Control characters are refused: PostgreSQL does not store all of them, and HTTP headers must not
    contain them.
    """
    if not text:
        raise MissingField(field=field)
    check_length(field, text, limit)
    if CONTROL_CHARACTERS.search(text):
        raise InvalidField(field=field, problem="it contains control characters")
    return text


def check_length(field: str, value: Sized, limit: int) -> None:
    """Raise TooLong for a text with more characters, or a collection with more items."""
    if len(value) > limit:
        unit = "characters" if isinstance(value, str) else "items"
        raise TooLong(field=field, length=len(value), limit=limit, unit=unit)


def check_num_bytes(field: str, num_bytes: int, limit: int) -> None:
    """Raise TooLong if there are more bytes."""
    if num_bytes > limit:
        raise TooLong(field=field, length=num_bytes, limit=limit, unit="bytes")


def check_range(
    field: str, value: float | None, minimum: float, maximum: float | None = None
) -> None:
    """Raise OutOfRange unless a value, which may be None, is within both limits."""
    limit = math.inf if maximum is None else maximum
    if value is not None and not minimum <= value <= limit:
        raise OutOfRange(field=field, value=value, minimum=minimum, maximum=maximum)


def check_digest(field: str, digest: str, digits: int) -> str:
    """Check a hex digest, which may be empty; return it in lower case. Raises InvalidField."""
    if digest and not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", digest):
        raise InvalidField(field=field, problem=f"it is not {digits} hexadecimal digits")
    return digest.lower()


PROJECT_ID_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def check_project_id(project_id: str) -> None:
    """Raise MissingField or ProjectNotFound for a malformed id, before it is used in a query."""
    if not project_id:
        raise MissingField(field="project_id")
    if not PROJECT_ID_PATTERN.fullmatch(project_id):
        raise ProjectNotFound(project=project_id)


SHA256_DIGITS: Final = 64
