"""Items: id prefixes, stored documents, and validation."""

from typing import get_args

import pytest

from control_svc.items.input_items import MAX_TOOLS, InputItem
from control_svc.items.model import (
    ITEM_PREFIXES,
    Content,
    FileCitation,
    FileInput,
    FileSearchCall,
    FunctionCallOutput,
    Image,
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
from control_svc.items.queries import decode_content, encode_content
from svc_kit.errors import DomainError, TooLong

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


def test_a_list_of_mcp_tools_is_limited() -> None:
    """Callers send such lists too, and each turn's prompt contains all tools."""
    tools = [
        McpToolDescription(name=f"t{n}", description="", input_schema_json="{}")
        for n in range(MAX_TOOLS + 1)
    ]
    InputItem(content=McpListTools(server_label="s", tools=tuple(tools[1:]))).check("input[0]")
    with pytest.raises(TooLong) as error:
        InputItem(content=McpListTools(server_label="s", tools=tuple(tools))).check("input[0]")

    assert (error.value.field, error.value.limit) == ("input[0].tools", MAX_TOOLS)


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
    InputItem(content=Message(role=Role.USER, content=(part,))).check("input[0]")
