"""JSON in requests: schemas, template variables, arguments of earlier calls."""

import json
from typing import Any

from svc_kit.errors import InvalidJson, InvalidType


def json_object(text: str, field: str) -> dict[str, Any]:
    """Parse a JSON object without NaN and infinities.

    Raises:
        InvalidJson: The text is not JSON, or is nested too deeply.
        InvalidType: The value is not an object.
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
    """Parse the output of a model; None if it is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def json_text(value: Any) -> str:
    """Serialize a value as JSON that is valid Unicode: lone surrogates are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if is_unicode(text) else json.dumps(value)


def is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogate, so that it can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
