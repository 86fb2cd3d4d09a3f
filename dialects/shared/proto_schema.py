"""JSON schemas of protobuf messages in their standard mapping, with the fields' own names."""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

_WELL_KNOWN: Final = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^[0-9]{1,12}(\.[0-9]{1,9})?s$"},
    "google.protobuf.FieldMask": {"type": "string"},
    "google.protobuf.Struct": {"type": "object"},
}
_SCALARS: Final[Mapping[int, Mapping[str, Any]]] = {
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number"},
    FieldDescriptor.CPPTYPE_INT64: {"type": ["integer", "string"]},
    FieldDescriptor.CPPTYPE_UINT64: {"type": ["integer", "string"]},
}


def message_schema(descriptor: Any) -> dict[str, Any]:
    if descriptor.full_name in _WELL_KNOWN:
        return _WELL_KNOWN[descriptor.full_name]
    properties = {field.name: field_schema(field) for field in descriptor.fields}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def field_schema(field: Any) -> dict[str, Any]:
    schema: dict[str, Any]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        return {"type": "object", "additionalProperties": field_schema(value)}
    if field.message_type is not None:
        schema = message_schema(field.message_type)
    elif field.enum_type is not None:
        schema = {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    else:
        schema = dict(_SCALARS.get(field.cpp_type, {"type": "integer"}))
    return {"type": "array", "items": schema} if field.is_repeated else schema
