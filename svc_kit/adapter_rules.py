"""Validation of names and scales of LoRA adapters, for the registry and the frontends."""

import math
import re
from typing import Final

from svc_kit.errors import InvalidField, OutOfRange

MAX_SCALE: Final = 10.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_NAME_RULE: Final = (
    "must be 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':', '-', and start with a letter or digit"
)


def is_adapter_name(text: str) -> bool:
    """Whether a text is a valid adapter name."""
    return _NAME.fullmatch(text) is not None


def check_adapter_name(name: str) -> None:
    """Raise InvalidField unless the name is valid."""
    if not is_adapter_name(name):
        raise InvalidField(field="name", problem=_NAME_RULE)


def check_scale(field: str, scale: float) -> None:
    """Raise OutOfRange unless the scale is valid."""
    if not (math.isfinite(scale) and -MAX_SCALE <= scale <= MAX_SCALE):
        raise OutOfRange(field=field, value=scale, minimum=-MAX_SCALE, maximum=MAX_SCALE)
