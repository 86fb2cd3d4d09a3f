"""Validation shared by several slices. Errors name the invalid field."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from svc_kit.errors import InvalidField, MissingField, OutOfRange, ProjectNotFound, TooLong

MAX_NAME_CHARACTERS: Final = 255
MAX_REQUEST_ID_CHARACTERS: Final = 128
MAX_METADATA_PAIRS: Final = 16
MAX_METADATA_KEY_CHARACTERS: Final = 64
MAX_METADATA_VALUE_CHARACTERS: Final = 512
MIN_TTL: Final = timedelta(hours=1)
MAX_TTL: Final = timedelta(days=30)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def check_text(field: str, text: str, limit: int = MAX_NAME_CHARACTERS) -> str:
    """Check and return a short text. Raises MissingField, TooLong or InvalidField.

    Control characters are refused: PostgreSQL does not store all of them, and HTTP headers must not
    contain them.
    """
    if not text:
        raise MissingField(field=field)
    if len(text) > limit:
        raise TooLong(field=field, length=len(text), limit=limit, unit="characters")
    if _CONTROL.search(text):
        raise InvalidField(field=field, problem="it contains control characters")
    return text


def check_request_id(request_id: str) -> str:
    """Check and return a request id, which may be empty. Raises TooLong or InvalidField."""
    return request_id and check_text("request_id", request_id, MAX_REQUEST_ID_CHARACTERS)


def check_metadata(metadata: Mapping[str, str], field: str = "metadata") -> None:
    """Check the metadata of an object. Raises MissingField, TooLong or InvalidField."""
    if len(metadata) > MAX_METADATA_PAIRS:
        raise TooLong(field=field, length=len(metadata), limit=MAX_METADATA_PAIRS)
    for key, value in metadata.items():
        check_text(field, key, MAX_METADATA_KEY_CHARACTERS)
        if value:
            check_text(f"{field}.{key}", value, MAX_METADATA_VALUE_CHARACTERS)


def check_ttl(ttl: timedelta | None, field: str = "ttl") -> timedelta | None:
    """Check and return a time to live. Raises OutOfRange, in seconds."""
    if ttl is not None and not MIN_TTL <= ttl <= MAX_TTL:
        raise OutOfRange(
            field=field,
            value=int(ttl.total_seconds()),
            minimum=int(MIN_TTL.total_seconds()),
            maximum=int(MAX_TTL.total_seconds()),
        )
    return ttl


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
