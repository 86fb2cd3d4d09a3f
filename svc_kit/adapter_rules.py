"""Rules for names and scales of LoRA adapters, shared by registry and frontends."""

import math
import re
from typing import Final

from svc_kit.errors import InvalidField, OutOfRange

MAX_SCALE: Final = 10.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def is_adapter_name(text: str) -> bool:
    """Whether an adapter can be called so."""
    return _NAME.fullmatch(text) is not None


def check_adapter_name(name: str) -> None:
    """Raise `InvalidField` for what no adapter can be called."""
    if not is_adapter_name(name):
        raise InvalidField(field="name", problem='1 to 128 of A-Z, a-z, 0-9 and "._:-"')


def check_scale(field: str, scale: float) -> None:
    """Raise `OutOfRange` for a scale that no adapter can have."""
    if not (math.isfinite(scale) and -MAX_SCALE <= scale <= MAX_SCALE):
        raise OutOfRange(field=field, value=scale, minimum=-MAX_SCALE, maximum=MAX_SCALE)
