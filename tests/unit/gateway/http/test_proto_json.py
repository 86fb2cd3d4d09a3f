"""Protobuf messages as JSON, and the errors of JSON that is no such message."""

from typing import Any

import pytest
from corral.control.v1 import key_service_pb2, limit_service_pb2
from corral.inference.v1 import engine_service_pb2

from gateway.http.proto_json import (
    message_object,
    parse_message,
    parse_query,
    proto_body,
    proto_parameters,
)
from svc_kit.errors import InvalidField, UnknownField

CreateKey = key_service_pb2.CreateKeyRequest


def test_json_becomes_a_message_and_back() -> None:
    """Enums by their names, times as text, 64-bit numbers as strings, empty fields included."""
    fields = {
        "name": "x",
        "scopes": ["KEY_SCOPE_ADMIN"],
        "expire_time": "2030-01-01T00:00:00Z",
    }
    message = parse_message(CreateKey, fields)

    assert message.scopes == [key_service_pb2.KEY_SCOPE_ADMIN]
    written = message_object(message)
    assert {name: written[name] for name in fields} == fields
    assert (written["project_id"], written["priority"]) == ("", "PRIORITY_UNSPECIFIED")
    assert message_object(limit_service_pb2.Limit(amount=5))["amount"] == "5"


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({"nmae": "x"}, UnknownField, "nmae"),
        ({"name": 1}, InvalidField, "name"),
        ({"scopes": ["admin"]}, InvalidField, "scopes"),
        ({"scopes": "admin"}, InvalidField, "scopes"),
        ({"expire_time": "tomorrow"}, InvalidField, "expire_time"),
        ({"priority": []}, InvalidField, "priority"),
    ],
)
def test_an_error_names_the_field(fields: Any, error: type[Exception], field: str) -> None:
    """Whatever the type of the value is."""
    with pytest.raises(error) as refused:
        parse_message(CreateKey, fields)

    assert refused.value.metadata["field"] == field  # type: ignore[attr-defined]


def test_a_query_has_booleans_and_numbers_as_text() -> None:
    """Empty parameters count as missing."""
    query = {"show_revoked": "true", "page_size": "2", "page_token": ""}
    message = parse_query(key_service_pb2.ListKeysRequest, query)

    assert message == key_service_pb2.ListKeysRequest(show_revoked=True, page_size=2)
    with pytest.raises(InvalidField, match="show_revoked"):
        parse_query(key_service_pb2.ListKeysRequest, {"show_revoked": "yes"})


def test_the_schema_has_the_fields_of_the_message() -> None:
    """With their types, also of messages inside."""
    schema = proto_body(engine_service_pb2.LoadModelRequest).content["application/json"]["schema"]
    limits = schema["properties"]["limits"]["properties"]

    assert schema["properties"]["model"] == {"type": "string"}
    assert schema["properties"]["wait"] == {"type": "boolean"}
    assert limits["slots"] == {"type": "integer"}
    assert "KV_LAYOUT_UNIFIED" in limits["layout"]["enum"]


def test_fields_are_parameters_of_the_path_or_the_query() -> None:
    request = key_service_pb2.ListKeysRequest
    parameters = proto_parameters(request, "/keys/{project_id}")
    places = {each["name"]: (each["in"], each["required"]) for each in parameters}

    assert set(places) == {field.name for field in request.DESCRIPTOR.fields}
    assert places["project_id"] == ("path", True)
    assert places["show_revoked"] == ("query", False)
