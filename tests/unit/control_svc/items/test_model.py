"""Items: id prefixes, stored documents, and validation."""

from typing import get_args

import pytest

from control_svc.items.input_items import InputItem
from control_svc.items.model import (
    ITEM_PREFIXES,
    Content,
    CustomToolCall,
    CustomToolCallOutput,
    FileCitation,
    FileInput,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Image,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    McpToolDescription,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    SearchResult,
    Text,
    TokenLogprob,
)
from control_svc.items.proto import INPUT_ITEM
from control_svc.items.queries import decode_content, encode_content
from svc_kit.errors import DomainError, InvalidField, MissingField, TooLong
from svc_kit.rpc.field_limits import check_limits

CITATION = FileCitation(file_id="file-1", filename="a", marker="[1]", start=0, end=3)
LOGPROB = TokenLogprob(
    token="\ufffd", logprob=-0.5, raw=b"\xe4", top=(TokenLogprob(token="b", logprob=-9),)
)
CONTENTS: list[Content] = [
    Message(
        role=Role.ASSISTANT,
        content=(
            Text(text="\x00 é 你 [1]", annotations=(CITATION,), logprobs=(LOGPROB,)),
            Refusal(refusal="no"),
            Image(file_id="file-2", detail="low"),
            FileInput(data_url="data:,", filename="b"),
        ),
    ),
    FunctionCallOutput(call_id="call", output=(Text(text=""),)),
    Reasoning(text="hm", sealed="x"),
    FileSearchCall(
        call_id="call",
        queries=("a", "b"),
        results=(SearchResult(file_id="file-1", filename="a", score=0.5, text="t"),),
    ),
    McpCall(server_label="s", name="n", arguments="{}"),
    McpCall(server_label="s", name="n", arguments="{}", output=""),
]


def test_every_kind_has_a_prefix() -> None:
    """Prefixes are unique, so an id tells the kind."""
    assert set(ITEM_PREFIXES) == set(get_args(Content))
    assert len(set(ITEM_PREFIXES.values())) == len(ITEM_PREFIXES)


@pytest.mark.parametrize("content", CONTENTS, ids=repr)
def test_a_document_round_trips(content: Content) -> None:
    """Also bytes, None and empty texts."""
    assert decode_content(encode_content(content)) == content


def call(call_id: str, name: str = "f") -> FunctionCall:
    """A call of a function."""
    return FunctionCall(call_id=call_id, name=name, arguments="{}")


def custom_call(call_id: str, name: str = "f") -> CustomToolCall:
    """A call of a custom tool."""
    return CustomToolCall(call_id=call_id, name=name, input="x")


def output(call_id: str) -> FunctionCallOutput:
    """The output of a function."""
    return FunctionCallOutput(call_id=call_id, output=())


def custom_output(call_id: str) -> CustomToolCallOutput:
    """The output of a custom tool."""
    return CustomToolCallOutput(call_id=call_id, output=())


def approval(request_id: str) -> McpApprovalResponse:
    """An approval."""
    return McpApprovalResponse(approval_request_id=request_id, approve=True)


def mcp_list(num_tools: int) -> McpListTools:
    """A list of so many tools."""
    tool = McpToolDescription(name="t", description="", input_schema_json="{}")
    return McpListTools(server_label="s", tools=(tool,) * num_tools)


@pytest.mark.parametrize(
    ("valid", "invalid", "error", "field"),
    [
        (mcp_list(128), mcp_list(129), TooLong, "tools"),
        (call("c" * 64), call("c" * 65), TooLong, "call_id"),
        (call("c"), call(""), MissingField, "call_id"),
        (call("c"), call("a\nb"), InvalidField, "call_id"),
        (call("c", "f" * 128), call("c", "f" * 129), TooLong, "name"),
        (call("c"), call("c", ""), MissingField, "name"),
        (custom_call("c"), custom_call("c" * 65), TooLong, "call_id"),
        (custom_call("c"), custom_call("c", "a\tb"), InvalidField, "name"),
        (output("c"), output(""), MissingField, "call_id"),
        (custom_output("c"), custom_output("c" * 65), TooLong, "call_id"),
        (approval("a" * 64), approval("a" * 65), TooLong, "approval_request_id"),
        (approval("a"), approval(""), MissingField, "approval_request_id"),
    ],
    ids=str,
)
def test_names_and_ids_of_calls_are_limited(
    valid: Content, invalid: Content, error: type[DomainError], field: str
) -> None:
    """The error names the item, not its kind."""
    check_limits(INPUT_ITEM.to_message(InputItem(content=valid)), "input[0].")
    with pytest.raises(error) as caught:
        check_limits(INPUT_ITEM.to_message(InputItem(content=invalid)), "input[0].")

    assert caught.value.field == f"input[0].{field}"


@pytest.mark.parametrize("name", ["content", "output"])
@pytest.mark.parametrize(
    ("part", "field"),
    [
        (Image(url="ftp://host/x.png"), ""),
        (Image(url="cat.png"), ""),
        (Image(url="data:image/png;base64,?"), ""),
        (Image(url="data:image/png,x"), ""),
        (Image(url="https://host/x.png", file_id="file-1"), ""),
        (Image(), ""),
        (Image(url="https://host/x.png", detail="huge"), ".detail"),
        (FileInput(data_url="not base64"), ""),
        (FileInput(data_url="data:text/plain,x"), ""),
        (FileInput(data_url="AAAA", file_id="file-1"), ""),
        (FileInput(), ""),
    ],
    ids=repr,
)
def test_a_malformed_picture_or_document_is_refused(part: Part, field: str, name: str) -> None:
    """In messages and outputs of functions; the error names the part."""
    content: Content = Message(role=Role.USER, content=(Text(text="?"), part))
    if name == "output":
        content = FunctionCallOutput(call_id="c", output=(Text(text="?"), part))
    with pytest.raises(DomainError) as error:
        InputItem(content=content).check("input[0]")

    assert error.value.field == f"input[0].{name}[1]{field}"


@pytest.mark.parametrize(
    "part",
    [
        Image(url="https://host/x.png", detail="auto"),
        Image(url="http://host/x.png"),
        Image(url="data:image/png;base64,AAAA", detail="low"),
        Image(file_id="file-1", detail="high"),
        FileInput(data_url="data:application/pdf;base64,AAAA", filename="a.pdf"),
        FileInput(data_url="AAAA"),
        FileInput(data_url="https://host/a.pdf"),
        FileInput(file_id="file-1"),
    ],
    ids=repr,
)
def test_pictures_and_documents_have_one_source(part: Part) -> None:
    """A URL or base64, or a file."""
    InputItem(content=Message(role=Role.USER, content=(part,))).check("input[0]")
