"""Items: id prefixes, stored documents, and validation."""

from typing import get_args

import pytest

from control_svc.items import model as item_model
from control_svc.items.input_items import MAX_TOOLS, InputItem
from control_svc.items.queries import decode_content, encode_content
from svc_kit.errors import DomainError, TooLong

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


def test_a_list_of_mcp_tools_is_limited() -> None:
    """Callers send such lists too, and each turn's prompt contains all tools."""
    tools = [
        item_model.McpToolDescription(name=f"t{n}", description="", input_schema_json="{}")
        for n in range(MAX_TOOLS + 1)
    ]
    InputItem(content=item_model.McpListTools(server_label="s", tools=tuple(tools[1:]))).check(
        "input[0]"
    )
    with pytest.raises(TooLong) as error:
        InputItem(content=item_model.McpListTools(server_label="s", tools=tuple(tools))).check(
            "input[0]"
        )

    assert (error.value.field, error.value.limit) == ("input[0].tools", MAX_TOOLS)


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
