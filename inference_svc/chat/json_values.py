"""JSON in requests: schemas, template variables, arguments of earlier calls."""

import json
from typing import Any, Final

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


_ANNOTATIONS: Final = frozenset(
    ("$comment", "$id", "$schema", "deprecated", "readOnly", "title", "writeOnly")
)
"""Keywords of a JSON Schema that allow and describe nothing."""
_NAMED_SCHEMAS: Final = frozenset(
    ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
)
"""Keywords whose value has schemas by names, which may be those of keywords."""
_DATA: Final = frozenset(("const", "default", "enum", "examples", "required"))


def schema_for_model(text: str, field: str) -> dict[str, Any]:
    """Parse a JSON Schema, and leave out the keywords that no model needs.

    Raises InvalidJson or InvalidType, as `json_object` does.
    """
    try:
        return {**_without_annotations(json_object(text, field))}
    except RecursionError:
        raise InvalidJson(field=field, problem="it is nested too deeply") from None


def _without_annotations(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_annotations(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        keyword: _keyword_value(keyword, value)
        for keyword, value in schema.items()
        if keyword not in _ANNOTATIONS
    }


def _keyword_value(keyword: str, value: Any) -> Any:
    if keyword in _DATA:
        return value
    if keyword in _NAMED_SCHEMAS and isinstance(value, dict):
        return {name: _without_annotations(each) for name, each in value.items()}
    return _without_annotations(value)
