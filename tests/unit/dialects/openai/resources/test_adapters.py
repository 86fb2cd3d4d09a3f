"""Request bodies and queries of adapters."""

from typing import Any

import pytest
from corral.control.v1.listing_pb2 import LIST_ORDER_OLDEST_FIRST

from dialects.openai.chat.chat_request import parse_chat
from dialects.openai.resources.adapters import (
    AdapterListQuery,
    header_from_form,
    header_from_json,
    header_from_load,
    header_from_path,
    parse_wait,
    scales_by_index,
    update_request,
)
from dialects.openai.shared.pagination import parse_page_fields
from dialects.shared.json_body import parse_array
from svc_kit import errors


def test_form_fields_are_parsed() -> None:
    """Numbers and booleans."""
    form = {"name": "voice", "default_scale": "0.5", "replace": "true", "model": "tiny"}
    header = header_from_form(form, "id")

    assert (header.name, header.model, header.default_scale) == ("voice", "tiny", 0.5)
    assert (header.replace, header.request_id) == (True, "id")
    assert not header_from_form({"name": "voice"}, "").HasField("default_scale")


def test_a_json_body_has_a_file_id() -> None:
    """Null means not given."""
    header = header_from_json({"name": "voice", "file_id": "file-1", "model": None}, "")

    assert (header.file_id, header.replace) == ("file-1", False)


def test_bodies_of_other_servers_have_a_path() -> None:
    """vLLM replaces an adapter only with load_inplace."""
    body = {"lora_name": "voice", "lora_path": "v.gguf", "base_model_name": "tiny"}
    load = header_from_load(body, "")

    assert (load.name, load.path, load.model, load.replace) == ("voice", "v.gguf", "tiny", False)
    assert header_from_load({**body, "load_inplace": True}, "").replace
    assert header_from_path({"name": "voice", "path": "v.gguf"}, "").replace


@pytest.mark.parametrize(
    ("read", "fields", "error", "field"),
    [
        (header_from_form, {}, errors.MissingField, "name"),
        (
            header_from_form,
            {"name": "a", "default_scale": "x"},
            errors.InvalidType,
            "default_scale",
        ),
        (
            header_from_form,
            {"name": "a", "default_scale": "11"},
            errors.OutOfRange,
            "default_scale",
        ),
        (header_from_form, {"name": "a", "replace": "yes"}, errors.InvalidType, "replace"),
        (header_from_form, {"name": "a", "colour": "red"}, errors.UnknownField, "colour"),
        (header_from_json, {"name": "a"}, errors.MissingField, "file_id"),
        (header_from_load, {"lora_name": "a"}, errors.MissingField, "lora_path"),
        (header_from_path, {"name": "", "path": "x"}, errors.DomainError, "name"),
    ],
)
def test_invalid_registrations_are_rejected(read: Any, fields: Any, error: Any, field: str) -> None:
    """The error has the caller's field name."""
    with pytest.raises(error) as refused:
        read(fields, "")

    assert refused.value.field == field


def test_an_update_contains_only_given_fields() -> None:
    """Zero is a value."""
    request = update_request("voice", {"standing_scale": 0, "etag": "1"})

    assert request.HasField("standing_scale")
    assert not request.HasField("default_scale")
    assert request.etag == "1"


def test_omitted_scales_are_zero() -> None:
    """Unknown indexes and invalid scales are rejected."""
    assert scales_by_index([{"id": 1, "scale": 0.5}], 3) == {0: 0.0, 1: 0.5, 2: 0.0}
    for items in ([{"id": 3, "scale": 1}], [{"id": 0, "scale": 99}], [{"scale": 1}], [1]):
        with pytest.raises(errors.DomainError):
            scales_by_index(items, 3)


def test_queries_are_parsed() -> None:
    """`wait` is 0 to 60 whole seconds."""
    query = {"limit": "1000", "order": "asc", "after": "adapter_1"}
    fields = parse_page_fields(query, AdapterListQuery)

    assert fields == {"page_size": 1000, "order": LIST_ORDER_OLDEST_FIRST, "after": "adapter_1"}
    assert parse_wait({}) is None
    assert parse_wait({"wait": "5"}).seconds == 5  # type: ignore[union-attr]  # it is there
    for text in ("-1", "61", "x", "1.5"):
        with pytest.raises(errors.InvalidField):
            parse_wait({"wait": text})


def test_only_arrays_are_parsed_as_arrays() -> None:
    """Other JSON is rejected."""
    assert parse_array(b"[1]") == [1]
    for raw in (b"", b"{}", b"[1"):
        with pytest.raises(errors.InvalidJson):
            parse_array(raw)


@pytest.mark.parametrize("lora", ["voice", [{"id": "voice"}], [{"name": "voice"}]])
def test_lora_has_several_formats(lora: Any) -> None:
    messages = [{"role": "user", "content": "Hi."}]
    body = parse_chat({"model": "m", "messages": messages, "lora": lora})

    assert body.lora is not None
    assert [choice.id for choice in body.lora] == ["voice"]
