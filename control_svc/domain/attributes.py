"""What callers attach to a file of a vector store, and what filters compare."""

import math
from collections.abc import Mapping
from typing import Final

from control_svc.domain.checks import (
    MAX_METADATA_KEY_CHARACTERS,
    MAX_METADATA_PAIRS,
    MAX_METADATA_VALUE_CHARACTERS,
    check_text,
)
from svc_kit.errors import OutOfRange, TooLong

AttributeValue = str | float | bool
"""Whole numbers are floats, as in JSON."""

FIELD: Final = "attributes"


def check_attributes(attributes: Mapping[str, AttributeValue]) -> None:
    """Raises MissingField, TooLong, InvalidField or OutOfRange."""
    if len(attributes) > MAX_METADATA_PAIRS:
        raise TooLong(field=FIELD, length=len(attributes), limit=MAX_METADATA_PAIRS)
    for key, value in attributes.items():
        check_text(FIELD, key, MAX_METADATA_KEY_CHARACTERS)
        check_value(f"{FIELD}.{key}", value)


def check_value(field: str, value: AttributeValue) -> None:
    """One value. Raises TooLong, InvalidField or OutOfRange."""
    if isinstance(value, str):
        if value:
            check_text(field, value, MAX_METADATA_VALUE_CHARACTERS)
    elif not math.isfinite(value):
        raise OutOfRange(field=field, value=value)
