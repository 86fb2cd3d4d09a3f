"""Responses with the tools of a real MCP server and a scripted model."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import conversation_service_pb2, item_pb2, response_pb2, tool_pb2
from corral.control.v1 import response_service_pb2 as pb
from corral.control.v1.conversation_service_pb2_grpc import ConversationServiceStub

from control_svc.inference.turns import TextPart, TurnRequest
from svc_kit.errors import InvalidField, UnsupportedValue
from tests.support.control import RunningControl, run_control
from tests.support.mcp_server import LABEL, SECRET, Shop, run_shop
from tests.support.response_client import ResponseClient, event_names, make_model_parts, output_text
from tests.support.scripted_turns import Script, ScriptedTurns, call_script, in_order, text_script

NEVER = tool_pb2.McpTool.APPROVAL_NEVER
COMPLETED = response_pb2.Response.STATE_COMPLETED
FAILED = response_pb2.Response.STATE_FAILED
ORDER = call_script("order", '{"ware":"tea"}')


def remote(**fields: Any) -> tool_pb2.Tool:
    return tool_pb2.Tool(mcp=tool_pb2.McpTool(server_label=LABEL, **fields))


def approval(request_id: str, *, approve: bool, reason: str = "") -> item_pb2.Item:
    response = item_pb2.McpApprovalResponseItem(
        approval_request_id=request_id, approve=approve, reason=reason
    )
    return item_pb2.Item(mcp_approval_response=response)


@pytest.fixture(scope="module")
def open_shop() -> Iterator[Shop]:
    with run_shop() as running:
        yield running


@pytest.fixture
def shop(open_shop: Shop) -> Shop:
    """The MCP server without recorded calls."""
    open_shop.ordered.clear()
    open_shop.small_print = ""
    open_shop.authorizations.clear()
    return open_shop


@pytest.fixture
def model() -> ScriptedTurns:
    """A model that orders tea and then answers."""
    return ScriptedTurns(in_order(ORDER, text_script("It is ordered")))


@pytest.fixture
async def running(
    tmp_path: Path, model: ScriptedTurns, shop: Shop
) -> AsyncIterator[RunningControl]:
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    server = {
        "label": LABEL,
        "url": shop.url,
        "header_files": {"Authorization": str(secret)},
        "output_bytes": 16_384,
    }
    unreachable = {"label": "dead", "url": "http://127.0.0.1:1/mcp"}
    async with run_control(
        tmp_path, model=make_model_parts(model), mcp_servers=[server, unreachable]
    ) as control:
        yield control


@pytest.fixture
def client(running: RunningControl) -> ResponseClient:
    return ResponseClient(running.client)


def kinds(response: response_pb2.Response) -> list[str | None]:
    return [item.WhichOneof("content") for item in response.output]


def script(model: ScriptedTurns, *scripts: Script) -> None:
    model.choose = in_order(*scripts)


async def test_servers_are_listed_in_pages(client: ResponseClient) -> None:
    """By label, also those that cannot be reached."""
    list_servers = client.stub.ListMcpServers
    first = await client.client.call(list_servers, pb.ListMcpServersRequest(page_size=1))
    token = first.next_page_token
    rest = await client.client.call(list_servers, pb.ListMcpServersRequest(page_token=token))

    assert [each.id for each in first.mcp_servers] == ["dead"]
    assert [each.id for each in rest.mcp_servers] == [LABEL]
    assert not rest.next_page_token


async def test_a_call_is_executed_once_and_streamed_in_order(
    client: ResponseClient, shop: Shop, model: ScriptedTurns
) -> None:
    """The list of tools, the call with arguments and output, and the answer."""
    events = [event async for event in client.stream("Tea, please", tools=[remote(approval=NEVER)])]
    response = events[-1].completed

    assert shop.ordered == ["tea"]
    assert shop.authorizations == [SECRET]
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    assert response.output[1].mcp_call.output == "Ordered: tea"
    assert output_text(response) == "It is ordered"
    assert [tool.name for tool in model.requests[0].tools] == [
        "order",
        "wait",
        "break_down",
        "flood",
    ]
    assert model.requests[1].messages[-1].parts[0] == ("Ordered: tea",)
    assert event_names(events)[2:13] == [
        "output_item_added",
        "mcp_list_tools_in_progress",
        "mcp_list_tools_completed",
        "output_item_done",
        "output_item_added",
        "mcp_call_in_progress",
        "mcp_call_arguments_delta",
        "mcp_call_arguments_done",
        "mcp_call_completed",
        "output_item_done",
        "output_item_added",
    ]


async def test_a_chain_lists_tools_once(client: ResponseClient, model: ScriptedTurns) -> None:
    """The next response reuses the list, and may restrict it."""
    script(model, text_script("Hello"))
    first = await client.create("Hi", tools=[remote(approval=NEVER)])
    second = await client.create(
        "And now?",
        previous_response_id=first.id,
        tools=[remote(approval=NEVER, limits_tools=True, allowed_tools=["order"])],
    )

    assert kinds(first) == ["mcp_list_tools", "message"]
    assert kinds(second) == ["message"]
    assert [tool.name for tool in model.requests[-1].tools] == ["order"]


async def test_an_approved_call_is_executed_by_the_next_response(
    client: ResponseClient, shop: Shop
) -> None:
    """The call is not executed before; a used or repeated approval is refused."""
    pending = await client.create("Tea", tools=[remote()])
    request = pending.output[-1]
    assert (kinds(pending)[-1], shop.ordered) == ("mcp_approval_request", [])
    assert request.id.startswith("mcpr_")
    assert request.mcp_approval_request.arguments_json == '{"ware":"tea"}'

    approved = approval(request.id, approve=True)
    answer = await client.create(approved, previous_response_id=pending.id, tools=[remote()])

    assert shop.ordered == ["tea"]
    assert kinds(answer) == ["mcp_call", "message"]
    assert answer.output[0].mcp_call.approval_request_id == request.id
    assert answer.output[0].mcp_call.output == "Ordered: tea"
    for approvals, previous in (([approved], answer.id), ([approved, approved], pending.id)):
        with pytest.raises(InvalidField, match="no pending approval"):
            await client.create(*approvals, previous_response_id=previous, tools=[remote()])
    assert shop.ordered == ["tea"]


@pytest.mark.parametrize("store", [True, False])
async def test_an_approval_is_used_by_one_of_concurrent_responses(
    client: ResponseClient, shop: Shop, model: ScriptedTurns, store: bool
) -> None:
    """A client may repeat a request while the first one is in progress and after its end. The call
    is executed before the first turn of the model."""
    pending = await client.create("Tea", tools=[remote()])
    approved = approval(pending.output[-1].id, approve=True)
    fields: dict[str, Any] = {"previous_response_id": pending.id, "tools": [remote()]}
    reached, gate = asyncio.Event(), asyncio.Event()

    async def wait(_request: TurnRequest, _number: int) -> None:
        reached.set()
        await gate.wait()

    model.before_token = wait
    response = await client.create(approved, background=True, **fields)
    with pytest.raises(InvalidField, match="no pending approval"):
        await client.create(approved, store=store, **fields)
    await reached.wait()
    gate.set()
    completed = [event async for event in client.watch(response.id)][-1].completed
    with pytest.raises(InvalidField, match="no pending approval"):
        await client.create(approved, store=store, **fields)
    other = await client.create("Never mind", **fields)

    assert kinds(completed) == ["mcp_call", "message"]
    assert shop.ordered == ["tea"]
    assert other.state == COMPLETED


async def test_an_approval_in_a_refused_request_can_be_repeated(
    client: ResponseClient, shop: Shop
) -> None:
    """A refused request does not use the approval."""
    pending = await client.create("Tea", tools=[remote()])
    approved = approval(pending.output[-1].id, approve=True)
    with pytest.raises(InvalidField, match="needs the server"):
        await client.create(approved, previous_response_id=pending.id)
    await client.create(approved, previous_response_id=pending.id, tools=[remote()])

    assert shop.ordered == ["tea"]


async def test_an_approval_is_used_once_in_a_conversation(
    client: ResponseClient, shop: Shop
) -> None:
    """The approved call is not executed again."""
    conversations = ConversationServiceStub(client.client.channel)
    created = await conversations.CreateConversation(
        conversation_service_pb2.CreateConversationRequest(), metadata=client.client.metadata
    )
    fields: dict[str, Any] = {"conversation_id": created.conversation.id, "tools": [remote()]}
    pending = await client.create("Tea", **fields)
    approved = approval(pending.output[-1].id, approve=True)
    answer = await client.create(approved, **fields)
    with pytest.raises(InvalidField, match="no pending approval"):
        await client.create(approved, **fields)

    assert kinds(pending)[-1] == "mcp_approval_request"
    assert kinds(answer) == ["mcp_call", "message"]
    assert shop.ordered == ["tea"]


@pytest.mark.parametrize("store", [True, False])
async def test_an_approval_after_items_sent_by_the_caller(
    client: ResponseClient, shop: Shop, store: bool
) -> None:
    """Without a previous response, the caller sends the approval request too. It gets a new id if a
    stored item has its id, and the approval refers to it in both cases."""
    pending = await client.create("Tea", tools=[remote()], store=store)
    approved = approval(pending.output[-1].id, approve=True)
    answer = await client.create("Tea", *pending.output, approved, tools=[remote()], store=store)

    assert kinds(answer) == ["mcp_call", "message"]
    assert shop.ordered == ["tea"]
    request_id = answer.output[0].mcp_call.approval_request_id
    assert (request_id == pending.output[-1].id) is not store


async def test_a_long_result_is_compacted_before_the_next_turn(
    running: RunningControl, client: ResponseClient, shop: Shop, model: ScriptedTurns
) -> None:
    """Once, also if the engine dies after the compaction. The call is executed once, and later
    responses continue from the summary."""
    shop.small_print = " and" * 1100
    summary = "Summary of the conversation so far:\n\nMuch tea"

    def choose(request: TurnRequest) -> Script:
        texts = prompt_texts(request)
        if texts[-1].startswith("Sum up"):
            return text_script("Much tea")
        return text_script("It is ordered") if summary in texts else ORDER

    model.choose = choose
    running.clock.step_s = 1  # so that the backoff passes
    model.failures = [100, 100, 1]
    response = await client.create("Go", tools=[remote(approval=NEVER)], compact_threshold=1000)
    after = await client.create("And?", previous_response_id=response.id)

    assert shop.ordered == ["tea"]
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "compaction", "message"]
    assert output_text(response) == output_text(after) == "It is ordered"
    assert prompt_texts(model.requests[1])[:3] == ["Go", "", f"Ordered: tea{shop.small_print}"]
    assert prompt_texts(model.requests[-1]) == [summary, "Go", "It is ordered", "And?"]
    outputs = (ORDER, text_script("Much tea"), text_script("It is ordered"))
    assert response.usage.output_tokens == sum(len(script.deltas) for script in outputs)


async def test_a_list_of_tools_survives_compaction(
    running: RunningControl, client: ResponseClient, model: ScriptedTurns
) -> None:
    """Tools are listed once in a chain, also if the engine dies in the turn after the compaction:
    the resumed turn has the same tools."""
    model.choose = lambda _request: text_script("So be it")
    tools = [remote(approval=NEVER)]
    first = await client.create("a " * 1100, tools=tools)
    running.clock.step_s = 1  # so that the backoff passes
    model.failures = [100, 1]
    response = await client.create(
        "b", previous_response_id=first.id, tools=tools, compact_threshold=1000
    )
    after = await client.create("c", previous_response_id=response.id, tools=tools)

    assert kinds(response) == ["compaction", "message"]
    assert kinds(after) == ["message"]
    assert output_text(response) == "So be it"
    offered = [[tool.name for tool in request.tools] for request in model.requests]
    assert offered[0] == offered[2] == offered[3] == offered[4] != []


def prompt_texts(request: TurnRequest) -> list[str]:
    return [
        "".join(part.text for part in message.parts if isinstance(part, TextPart))
        for message in request.messages
    ]


async def test_a_refused_call_is_not_executed_and_the_model_reads_the_reason(
    client: ResponseClient, shop: Shop, model: ScriptedTurns
) -> None:
    """The model answers in the same response."""
    pending = await client.create("Tea", tools=[remote()])
    refused = approval(pending.output[-1].id, approve=False, reason="Too dear.")
    answer = await client.create(refused, previous_response_id=pending.id, tools=[remote()])

    assert (kinds(answer), shop.ordered) == (["message"], [])
    assert model.requests[-1].messages[-1].parts[0] == (
        "The user did not allow this call. Too dear.",
    )


@pytest.mark.parametrize(
    "tools",
    [[], [remote(limits_tools=True, allowed_tools=["wait"])], [remote(limits_tools=True)]],
    ids=["no server", "another tool", "no tool"],
)
async def test_an_approval_of_a_tool_that_is_not_allowed_is_refused(
    client: ResponseClient, shop: Shop, tools: list[tool_pb2.Tool]
) -> None:
    """The call is not executed, whether its item is stored or was written by the caller."""
    pending = await client.create("Tea", tools=[remote()])
    written = item_pb2.McpApprovalRequestItem(
        server_label=LABEL, name="order", arguments_json='{"ware":"coffee"}'
    )
    forged = item_pb2.Item(id="mcpr_1", mcp_approval_request=written)
    for items, previous in (
        ([approval(pending.output[-1].id, approve=True)], pending.id),
        ([forged, approval("mcpr_1", approve=True)], ""),
    ):
        with pytest.raises(InvalidField) as error:
            await client.create(*items, previous_response_id=previous, tools=tools)

        assert (error.value.field, shop.ordered) == ("tools", [])


async def test_a_failed_call_is_a_result(
    client: ResponseClient, model: ScriptedTurns, subtests: pytest.Subtests
) -> None:
    for name, arguments, problem in (
        ("break_down", "{}", "the shop is on fire"),
        ("flood", "{}", "16384 bytes"),
        ("order", "[]", "not a JSON object"),
        ("order", "{}", "ware"),
    ):
        script(model, call_script(name, arguments), text_script("Sorry"))
        events = [event async for event in client.stream("Go", tools=[remote(approval=NEVER)])]
        call = events[-1].completed.output[1].mcp_call
        with subtests.test(problem=problem):
            assert problem in call.problem
            assert not call.HasField("output")
            assert "mcp_call_failed" in event_names(events)
            assert output_text(events[-1].completed) == "Sorry"


async def test_tools_of_an_unreachable_server_are_left_out(
    client: ResponseClient, model: ScriptedTurns
) -> None:
    """The model answers without them, and the next response tries again."""
    script(model, text_script("Hello"))
    unreachable = tool_pb2.Tool(mcp=tool_pb2.McpTool(server_label="dead"))
    events = [event async for event in client.stream("Hi", tools=[unreachable])]
    response = events[-1].completed
    second = await client.create("Hi", previous_response_id=response.id, tools=[unreachable])

    assert "mcp_list_tools_failed" in event_names(events)
    assert "dead" in response.output[0].mcp_list_tools.problem
    assert kinds(response) == kinds(second) == ["mcp_list_tools", "message"]


async def test_unknown_and_repeated_server_labels_are_refused(client: ResponseClient) -> None:
    """The error has the field `server_label`."""
    with pytest.raises(UnsupportedValue) as unknown:
        await client.create("Hi", tools=[tool_pb2.Tool(mcp=tool_pb2.McpTool(server_label="else"))])
    with pytest.raises(InvalidField) as twice:
        await client.create("Hi", tools=[remote(), remote()])

    assert unknown.value.field == twice.value.field.replace("[1]", "[0]") == "tools[0].server_label"


async def test_a_client_function_keeps_its_name(
    client: ResponseClient, shop: Shop, model: ScriptedTurns
) -> None:
    """An MCP tool with the same name gets another one."""
    mine = tool_pb2.Tool(function=tool_pb2.FunctionTool(name="order"))
    script(model, call_script("shop_order", '{"ware":"tea"}'), text_script("It is ordered"))
    response = await client.create("Tea", tools=[remote(approval=NEVER), mine])

    assert (response.output[1].mcp_call.name, shop.ordered) == ("order", ["tea"])
    assert response.state == COMPLETED


async def test_a_response_that_is_not_stored_executes_calls(
    client: ResponseClient, shop: Shop
) -> None:
    """It has the same tools."""
    response = await client.create("Tea", tools=[remote(approval=NEVER)], store=False)

    assert (kinds(response), shop.ordered) == (["mcp_list_tools", "mcp_call", "message"], ["tea"])


async def test_a_response_that_cannot_be_resumed_fails_after_a_call(
    client: ResponseClient, shop: Shop, model: ScriptedTurns
) -> None:
    """A response that is not stored cannot be resumed. A retryable error would make clients repeat
    the call."""
    model.failures = [99, 0]  # the engine dies in the second turn
    response = await client.create("Tea", tools=[remote(approval=NEVER)], store=False)

    assert (response.state, shop.ordered) == (FAILED, ["tea"])
    assert kinds(response) == ["mcp_list_tools", "mcp_call"]
