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
    Reasoning,
    Refusal,
    Role,
    SearchResult,
    Text,
    TokenLogprob,
)
from control_svc.items.queries import decode_content, encode_content
from svc_kit.errors import TooLong

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
