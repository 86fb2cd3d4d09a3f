"""Conversations over HTTP: the official client, the gateway and the real control service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from httpx import AsyncClient

from tests.support.control import run_control
from tests.support.loopback_gateway import run_gateway

EVERY_KIND: list[dict[str, Any]] = [
    {"role": "user", "content": "hello"},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
    {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
        ],
    },
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "phase": "commentary"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "done"},
    {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
    {
        "type": "custom_tool_call_output",
        "call_id": "d",
        "output": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
    },
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "compaction", "encrypted_content": "sealed"},
    {"type": "file_search_call", "id": "fs_1", "queries": ["q"], "status": "completed"},
    {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []},
    {"type": "mcp_call", "id": "m", "server_label": "s", "name": "t", "arguments": "{}"},
    {"type": "mcp_approval_request", "id": "m", "server_label": "s", "name": "t", "arguments": ""},
    {"type": "mcp_approval_response", "approval_request_id": "m", "approve": True},
]


@dataclass
class Setup:
    """Two clients of one gateway."""

    http: AsyncClient
    sdk: openai.AsyncOpenAI


@asynccontextmanager
async def run_setup(folder: Path) -> AsyncIterator[Setup]:
    """Run a gateway in front of a control service on SQLite."""
    async with (
        run_control(folder) as control,
        run_gateway(control_target=control.target) as gateway,
        gateway.client() as http,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as sdk,
    ):
        yield Setup(http, sdk)


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with run_setup(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("kind", ["function", "custom_tool"])
async def test_an_output_needs_a_call_before_it(setup: Setup, kind: str) -> None:
    """In the conversation or the request; what was refused adds nothing."""
    argument = {"arguments": "{}"} if kind == "function" else {"input": "x"}
    call = {"type": f"{kind}_call", "call_id": "c", "name": "f", **argument}
    output = {"type": f"{kind}_call_output", "call_id": "c", "output": "done"}
    path = "/v1/conversations"
    refused = [await setup.http.post(path, json={"items": [output, call]})]
    conversation = (await setup.http.post(path, json={"items": [call]})).json()
    items = f"{path}/{conversation['id']}/items"
    other = {"role": "user", "content": "hi"}
    refused.append(await setup.http.post(items, json={"items": [output | {"call_id": "d"}]}))
    key = {"idempotency-key": "k"}
    added = [
        await setup.http.post(items, json={"items": [other, output]}, headers=key) for _ in "12"
    ]
    refused.append(await setup.http.post(items, json={"items": [other, output]}))

    for answer, call_id in zip(refused, "cdc", strict=True):
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "items")
        named = f"{kind.replace('_', ' ')} call output with call_id {call_id}."
        assert error["message"] == f"No tool call found for {named}"
    assert [answer.status_code for answer in added] == [200, 200]
    assert added[0].json() == added[1].json()
    assert len((await setup.http.get(items)).json()["data"]) == 3


async def test_the_official_client_manages_a_conversation(setup: Setup) -> None:
    """Create, update, list, remove an item, delete."""
    conversations = setup.sdk.conversations
    new = await conversations.create(
        metadata={"a": "b"}, items=[{"role": "user", "content": str(n)} for n in range(5)]
    )
    changed = await conversations.update(new.id, metadata={"c": "d"})
    items = [item async for item in conversations.items.list(new.id, limit=2, order="asc")]
    after_removal = await conversations.items.delete(items[0].id or "", conversation_id=new.id)
    retrieved = await conversations.retrieve(new.id)
    deleted = await conversations.delete(new.id)

    texts = [item.to_dict()["content"][0]["text"] for item in items]  # type: ignore[index]
    assert texts == list("01234")
    assert (new.object, changed.metadata) == ("conversation", {"c": "d"})
    assert after_removal == retrieved == changed
    assert (deleted.id, deleted.object, deleted.deleted) == (new.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError, match=f"Conversation with id '{new.id}' not found"):
        await conversations.retrieve(new.id)


async def test_items_of_every_type_are_returned_as_sent(setup: Setup) -> None:
    """They can be sent again."""
    created = (await setup.http.post("/v1/conversations", json={})).json()
    path = f"/v1/conversations/{created['id']}/items?include[]=message.input_image.image_url"

    added = (await setup.http.post(path, json={"items": EVERY_KIND})).json()
    listed = (await setup.http.get(f"{path}&order=asc")).json()
    resent = await setup.http.post(path, json={"items": listed["data"]})

    assert added["data"] == listed["data"]
    assert (listed["first_id"], listed["has_more"]) == (listed["data"][0]["id"], False)
    for written, shown in zip(EVERY_KIND, listed["data"], strict=True):
        assert shown["type"] == written.get("type", "message")
        normalized_fields = {"approval_request_id", "content", "type", "id", "phase", "status"}
        for name in written.keys() - normalized_fields:
            assert shown[name] == written[name], name
    request, answered = listed["data"][-2:]
    assert answered["approval_request_id"] == request["id"]
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "hello"}]
    assert listed["data"][2]["content"] == EVERY_KIND[2]["content"]
    assert without_ids(resent.json()["data"]) == without_ids(listed["data"])


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**item, "id": "", "approval_request_id": ""} for item in items]


async def test_an_item_reference_shares_the_item(setup: Setup) -> None:
    """By id, with or without a type."""
    first = (await setup.http.post("/v1/conversations", json={"items": EVERY_KIND[:1]})).json()
    (item,) = (await setup.http.get(f"/v1/conversations/{first['id']}/items")).json()["data"]

    for reference in ({"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
        second = await setup.http.post("/v1/conversations", json={"items": [reference]})
        path = f"/v1/conversations/{second.json()['id']}/items"
        assert (await setup.http.get(path)).json()["data"] == [item]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"items": [{"type": "no_such_item"}]}, "items[0].type", "unsupported_value"),
        ({"items": [{"content": "x"}]}, "items[0].type", "missing_required_parameter"),
        ({"items": [{"role": "user"}]}, "items[0].content", "missing_required_parameter"),
        ({"items": [{"role": "user", "content": "x"}] * 21}, "items", "array_above_max_length"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"metadata": {"a" * 65: "x"}}, "metadata", "string_above_max_length"),
        ({"items": [{"role": "user", "content": [{"type": "input_file", "file_url": "x.pdf"}]}]},
         "items[0].content[0].file_url", "invalid_value"),
    ],
)  # fmt: skip
async def test_invalid_conversations_are_rejected(
    setup: Setup, body: dict[str, Any], param: str, code: str
) -> None:
    """The error has the path of the field."""
    answer = await setup.http.post("/v1/conversations", json=body)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


async def test_items_that_are_all_ignored_are_not_called_missing(setup: Setup) -> None:
    """Those of a new conversation need not be any."""
    search = {"items": [{"type": "web_search_call", "id": "ws_1"}]}
    created = await setup.http.post("/v1/conversations", json=search)
    answer = await setup.http.post(f"/v1/conversations/{created.json()['id']}/items", json=search)

    assert (created.status_code, answer.status_code) == (200, 400)
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("items", "invalid_value")
    assert error["message"].startswith("Invalid 'items': all items are ignored")


async def test_errors_behind_an_ignored_item_have_the_index_of_the_caller(setup: Setup) -> None:
    """Those of the gateway and of the control service, in a new conversation and in an old one."""
    search, said = {"type": "web_search_call", "id": "ws_1"}, {"role": "user", "content": "x"}
    created = await setup.http.post("/v1/conversations", json={"items": [search, said]})
    paths = ("/v1/conversations", f"/v1/conversations/{created.json()['id']}/items")
    missing = {"type": "item_reference", "id": "msg_none"}
    picture = {"role": "user", "content": [{"type": "input_image", "file_id": "file-none"}]}

    for path in paths:
        for wrong, field in (
            (missing, "id"), (picture, "content[0].file_id"), ({"type": "no_such_item"}, "type"),
        ):  # fmt: skip
            items = [search, said, search, wrong]
            answer = await setup.http.post(path, json={"items": items})
            assert answer.json()["error"]["param"] == f"items[3].{field}", answer.text


async def test_an_idempotency_key_prevents_a_second_conversation(setup: Setup) -> None:
    """The replies are equal."""
    headers, body = {"Idempotency-Key": "k"}, {"items": EVERY_KIND[:1]}
    first = await setup.http.post("/v1/conversations", json=body, headers=headers)
    second = await setup.http.post("/v1/conversations", json=body, headers=headers)

    assert first.json() == second.json()
