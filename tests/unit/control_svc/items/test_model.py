"""Items: id prefixes, stored documents, and validation."""

from typing import get_args

import pytest
from corral.control.v1 import item_pb2 as pb

from control_svc.items import model as item_model
from control_svc.items.input_items import InputItem
from control_svc.items.queries import decode_content, encode_content
from svc_kit.errors import DomainError, InvalidField, MissingField, TooLong
from svc_kit.rpc.field_limits import check_limits

CITATION = item_model.FileCitation(file_id="file-1", filename="a", marker="[1]", start=0, end=3)
LOGPROB = item_model.TokenLogprob(
    token="\ufffd", logprob=-0.5, raw=b"\xe4", top=(item_model.TokenLogprob(token="b", logprob=-9),)
)
CONTENTS: list[item_model.Content] = [
    item_model.Message(
        role=item_model.Role.ASSISTANT,
        content=(
            item_model.Text(text="\x00 é 你 [1]", annotations=(CITATION,), logprobs=(LOGPROB,)),
            item_model.Refusal(refusal="no"),
            item_model.Image(file_id="file-2", detail="low"),
            item_model.FileInput(data_url="data:,", filename="b"),
        ),
    ),
    item_model.FunctionCallOutput(call_id="call", output=(item_model.Text(text=""),)),
    item_model.Reasoning(text="hm", sealed="x"),
    item_model.FileSearchCall(
        call_id="call",
        queries=("a", "b"),
        results=(item_model.SearchResult(file_id="file-1", filename="a", score=0.5, text="t"),),
    ),
    item_model.McpCall(server_label="s", name="n", arguments="{}"),
    item_model.McpCall(server_label="s", name="n", arguments="{}", output=""),
]


def test_every_kind_has_a_prefix() -> None:
    """Prefixes are unique, so an id tells the kind."""
    assert set(item_model.ITEM_PREFIXES) == set(get_args(item_model.Content))
    assert len(set(item_model.ITEM_PREFIXES.values())) == len(item_model.ITEM_PREFIXES)


@pytest.mark.parametrize("content", CONTENTS, ids=repr)
def test_a_document_round_trips(content: item_model.Content) -> None:
    """Also bytes, None and empty texts."""
    assert decode_content(encode_content(content)) == content


@pytest.mark.parametrize(
    ("kind", "field", "longest"),
    [
        ("function_call", "call_id", 64),
        ("function_call", "name", 128),
        ("function_call_output", "call_id", 64),
        ("custom_tool_call", "call_id", 64),
        ("custom_tool_call", "name", 128),
        ("custom_tool_call_output", "call_id", 64),
        ("mcp_approval_response", "approval_request_id", 64),
    ],
)
def test_names_and_ids_of_calls_are_limited(kind: str, field: str, longest: int) -> None:
    """The error names the item, not its kind."""
    item = pb.Item()
    content = getattr(item, kind)
    for each in {"call_id", "name"}.intersection(content.DESCRIPTOR.fields_by_name):
        setattr(content, each, "x")
    setattr(content, field, "x" * longest)
    check_limits(item, "input[0].")
    for value, error in (("", MissingField), ("x\t", InvalidField), ("x" * 129, TooLong)):
        setattr(content, field, value)
        with pytest.raises(error) as caught:
            check_limits(item, "input[0].")

        assert caught.value.field == f"input[0].{field}"


def test_a_list_of_mcp_tools_is_limited() -> None:
    """Callers send such lists too, and each turn's prompt contains all tools."""
    tools = [pb.McpToolDescription(name="t")] * 128
    check_limits(pb.Item(mcp_list_tools=pb.McpListToolsItem(tools=tools)), "input[0].")
    more = pb.McpListToolsItem(tools=[*tools, *tools[:1]])
    with pytest.raises(TooLong) as error:
        check_limits(pb.Item(mcp_list_tools=more), "input[0].")

    assert (error.value.field, error.value.limit) == ("input[0].tools", 128)


@pytest.mark.parametrize("name", ["content", "output"])
@pytest.mark.parametrize(
    ("part", "field"),
    [
        (item_model.Image(url="ftp://host/x.png"), ""),
        (item_model.Image(url="cat.png"), ""),
        (item_model.Image(url="data:image/png;base64,?"), ""),
        (item_model.Image(url="data:image/png,x"), ""),
        (item_model.Image(url="https://host/x.png", file_id="file-1"), ""),
        (item_model.Image(), ""),
        (item_model.Image(url="https://host/x.png", detail="huge"), ".detail"),
        (item_model.FileInput(data_url="not base64"), ""),
        (item_model.FileInput(data_url="data:text/plain,x"), ""),
        (item_model.FileInput(data_url="AAAA", file_id="file-1"), ""),
        (item_model.FileInput(), ""),
    ],
    ids=repr,
)
def test_a_malformed_picture_or_document_is_refused(
    part: item_model.Part, field: str, name: str
) -> None:
    content: item_model.Content = item_model.Message(
        role=item_model.Role.USER, content=(item_model.Text(text="?"), part)
    )
    if name == "output":
        content = item_model.FunctionCallOutput(
            call_id="c", output=(item_model.Text(text="?"), part)
        )
    with pytest.raises(DomainError) as error:
        InputItem(content=content).check("input[0]")

    assert error.value.field == f"input[0].{name}[1]{field}"


@pytest.mark.parametrize(
    "part",
    [
        item_model.Image(url="https://host/x.png", detail="auto"),
        item_model.Image(url="http://host/x.png"),
        item_model.Image(url="data:image/png;base64,AAAA", detail="low"),
        item_model.Image(file_id="file-1", detail="high"),
        item_model.FileInput(data_url="data:application/pdf;base64,AAAA", filename="a.pdf"),
        item_model.FileInput(data_url="AAAA"),
        item_model.FileInput(data_url="https://host/a.pdf"),
        item_model.FileInput(file_id="file-1"),
    ],
    ids=repr,
)
def test_pictures_and_documents_have_one_source(part: item_model.Part) -> None:
    InputItem(content=item_model.Message(role=item_model.Role.USER, content=(part,))).check(
        "input[0]"
    )
