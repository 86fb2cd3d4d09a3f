"""Pictures and documents of items of responses."""

from typing import Any, cast

import pytest
from corral.control.v1.item_pb2 import FilePart, ImagePart, ItemPart

from dialects.openai.errors import error_body
from dialects.openai.responses.input_items import item_to_proto
from dialects.openai.responses.output_items import item_object
from svc_kit.errors import DomainError

DATA_URL = "data:image/png;base64,AAAA"


def image(**fields: object) -> dict[str, Any]:
    return {"type": "input_image", **fields}


def file(**fields: object) -> dict[str, Any]:
    return {"type": "input_file", **fields}


def message_of(part: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [part]}


def output_of(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c", "output": [part]}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (image(image_url=DATA_URL), ItemPart(image=ImagePart(url=DATA_URL))),
        (image(image_url="https://h/x"), ItemPart(image=ImagePart(url="https://h/x"))),
        (
            image(file_id="file-1", detail="original"),
            ItemPart(image=ImagePart(file_id="file-1", detail="high")),
        ),
        (file(file_data="AAAA"), ItemPart(file=FilePart(data_url="AAAA"))),
        (
            file(file_id="file-1", filename="a.pdf"),
            ItemPart(file=FilePart(file_id="file-1", filename="a.pdf")),
        ),
        (file(file_url="https://h/x.pdf"), ItemPart(file=FilePart(data_url="https://h/x.pdf"))),
    ],
)
def test_parts_are_kept_in_messages_and_outputs(part: dict[str, Any], expected: ItemPart) -> None:
    """And written as they were sent."""
    message = item_to_proto(message_of(part), "input[0]")
    output = item_to_proto(output_of(part), "input[0]")

    assert [*message.message.parts, *output.function_call_output.output] == [expected, expected]
    (written,) = cast(Any, item_object(message))["content"]
    assert written.items() >= (part | ({"detail": "high"} if "detail" in part else {})).items()


@pytest.mark.parametrize(
    ("part", "param", "code"),
    [
        (image(), ".image_url", "missing_required_parameter"),
        (image(image_url="x.png"), ".image_url", "invalid_value"),
        (image(image_url="file:///etc/passwd"), ".image_url", "unsupported_value"),
        (image(image_url=5), ".image_url", "invalid_type"),
        (image(image_url=DATA_URL, detail="huge"), ".detail", "invalid_value"),
        (file(), ".file_data", "missing_required_parameter"),
        (file(file_data="AAAA", file_id="file-1"), "", "invalid_value"),
        (file(file_url="https://h/x", file_id="file-1"), "", "invalid_value"),
        (file(file_url="ftp://h/x"), ".file_url", "invalid_value"),
        (file(file_id=5), ".file_id", "invalid_type"),
        ({"type": "input_audio"}, ".type", "unsupported_value"),
    ],
)
def test_a_malformed_part_is_refused(part: dict[str, Any], param: str, code: str) -> None:
    """The error has the path of its field."""
    for item, name in ((message_of(part), "content"), (output_of(part), "output")):
        with pytest.raises(DomainError) as caught:
            item_to_proto(item, "input[0]")
        error: Any = error_body(caught.value)["error"]
        assert (error["param"], error["code"]) == (f"input[0].{name}[0]{param}", code)


@pytest.mark.parametrize("kind", ["function_call", "message", "mcp_call"])
def test_a_status_has_one_of_the_known_values(kind: str) -> None:
    """Another one was taken for none. Calls of hosted tools have more of them."""
    fields: dict[str, dict[str, Any]] = {
        "function_call": {"call_id": "c", "name": "f", "arguments": "{}"},
        "message": {"role": "user", "content": "hi"},
        "mcp_call": {"server_label": "s", "name": "f", "arguments": "{}"},
    }
    item = {"type": kind, **fields[kind]}
    hosted = kind == "mcp_call"
    values = ["in_progress", "completed", "incomplete"]
    for status in [None, *values, *(["calling", "failed"] if hosted else [])]:
        item_to_proto(item | {"status": status}, "input[0]")
    for status in ["zz", "", *([] if hosted else ["failed"])]:
        with pytest.raises(DomainError) as raised:
            item_to_proto(item | {"status": status}, "input[0]")
        assert raised.value.field == "input[0].status"
        assert all(repr(value) in raised.value.message for value in values)
