"""JSON in requests: schemas, template variables, arguments of earlier calls."""

import json
from typing import Any

from svc_kit.errors import InvalidJson, InvalidType


def json_object(text: str, field: str) -> dict[str, Any]:
    """Parse an object; NaN and infinities are refused.

    Raises:
        InvalidJson: the text is not JSON, or nested too deeply.
        InvalidType: it is something else than an object.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidJson(field=field, problem="it is nested too deeply") from None
    except ValueError as problem:
        raise InvalidJson(field=field, problem=str(problem)) from None
    if not isinstance(value, dict):
        raise InvalidType(field=field, expected="an object")
    return value


def json_or_none(text: str) -> Any:
    """Parse JSON that a model wrote; None where it is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def json_text(value: Any) -> str:
    """Return a value as JSON that UTF-8 can hold: lone surrogates are written as escapes."""
    text = json.dumps(value, ensure_ascii=False)
    return text if is_unicode(text) else json.dumps(value)


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold a text: it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
