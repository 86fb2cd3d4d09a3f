"""Protobuf messages as JSON, in its standard mapping with the fields' own names, for routes that
only translate a gRPC call.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from dialects.shared.proto_schema import field_schema, message_schema
from gateway.http.docs import RequestBody
from svc_kit.errors import InvalidField, UnknownField

MessageT = TypeVar("MessageT", bound=Message)

_UNKNOWN: Final = re.compile(r'no field named "([^"]*)"')
_INVALID: Final = re.compile(r"Failed to parse (\w+) field: (.*)", re.DOTALL)
_BOOLEANS: Final = {"true": True, "false": False}


def parse_message(message: type[MessageT], fields: Mapping[str, Any]) -> MessageT:
    """Convert JSON to a message. Raises UnknownField or InvalidField."""
    try:
        return json_format.ParseDict(dict(fields), message())
    except json_format.ParseError as error:
        text = str(error)
    if unknown := _UNKNOWN.search(text):
        raise UnknownField(field=unknown[1])
    field, problem = "request", text
    while nested := _INVALID.match(problem):
        field, problem = nested[1], nested[2]
    raise InvalidField(field=field, problem=problem.rstrip(".")[:200])


def parse_query(message: type[MessageT], query: Mapping[str, str]) -> MessageT:
    """Convert the query of a URL to a message. Raises as `parse_message`."""
    booleans = {
        field.name
        for field in message.DESCRIPTOR.fields
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL
    }
    fields: dict[str, Any] = {
        name: _BOOLEANS.get(text, text) if name in booleans else text
        for name, text in query.items()
        if text
    }
    return parse_message(message, fields)


def message_object(message: Message) -> dict[str, Any]:
    """Convert a message to JSON. Fields without presence are included when they are empty; numbers
    of 64 bits are strings."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def proto_body(message: type[Message]) -> RequestBody:
    """A message as the body of a request in the OpenAPI document."""
    schema = message_schema(message.DESCRIPTOR)
    return RequestBody({"application/json": {"schema": schema}})


def proto_reply(method: MethodDescriptor) -> dict[str, Any]:
    return {"application/json": {"schema": message_schema(method.output_type)}}


def proto_parameters(message: type[Message], path: str) -> list[dict[str, Any]]:
    """A message as the parameters of a request: fields that `path` names, and query fields."""
    return [
        {
            "name": field.name,
            "in": "path" if f"{{{field.name}}}" in path else "query",
            "required": f"{{{field.name}}}" in path,
            "schema": field_schema(field),
        }
        for field in message.DESCRIPTOR.fields
    ]
