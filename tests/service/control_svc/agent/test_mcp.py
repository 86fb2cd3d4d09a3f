"""Responses with the tools of a remote server, which is real; the model follows scripts."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import conversation_service_pb2, item_pb2, response_pb2, tool_pb2
from corral.control.v1.conversation_service_pb2_grpc import ConversationServiceStub

from control_svc.inference.turns import TextPart, TurnRequest
from svc_kit.errors import InvalidField, UnsupportedValue
from tests.support.control import RunningControl, a_control
from tests.support.mcp_server import LABEL, SECRET, Shop, a_shop
from tests.support.response_client import ResponseClient, a_model, names, text_of
from tests.support.scripted_turns import Script, ScriptedTurns, calls, in_order, says

NEVER = tool_pb2.McpTool.APPROVAL_NEVER
COMPLETED = response_pb2.Response.STATE_COMPLETED
FAILED = response_pb2.Response.STATE_FAILED
ORDER = calls("order", '{"ware":"tea"}')


def remote(**fields: Any) -> tool_pb2.Tool:
    """The server's tools."""
    return tool_pb2.Tool(mcp=tool_pb2.McpTool(server_label=LABEL, **fields))


def word(request_id: str, *, approve: bool, reason: str = "") -> item_pb2.Item:
    """What a person says of a call."""
    answer = item_pb2.McpApprovalResponseItem(
        approval_request_id=request_id, approve=approve, reason=reason
    )
    return item_pb2.Item(mcp_approval_response=answer)


@pytest.fixture(scope="module")
def open_shop() -> Iterator[Shop]:
    """The remote server."""
    with a_shop() as running:
        yield running


@pytest.fixture
def shop(open_shop: Shop) -> Shop:
    """The remote server, of which nothing was ordered yet."""
    open_shop.ordered.clear()
    open_shop.small_print = ""
    open_shop.authorizations.clear()
    return open_shop


@pytest.fixture
def model() -> ScriptedTurns:
    """Orders tea, and says so."""
    return ScriptedTurns(in_order(ORDER, says("It is ordered")))


@pytest.fixture
async def running(
    tmp_path: Path, database_url: str | None, model: ScriptedTurns, shop: Shop
) -> AsyncIterator[RunningControl]:
    """A control service that knows the server, on each database."""
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    server = {
        "label": LABEL,
        "url": shop.url,
        "header_files": {"Authorization": str(secret)},
        "output_bytes": 16_384,
    }
    dead = {"label": "dead", "url": "http://127.0.0.1:1/mcp"}
    async with a_control(
        tmp_path, database_url, model=a_model(model), mcp_servers=[server, dead]
    ) as control:
        yield control


@pytest.fixture
def client(running: RunningControl) -> ResponseClient:
    """A caller."""
    return ResponseClient(running.client)


def kinds(response: response_pb2.Response) -> list[str | None]:
    """What the output is made of."""
    return [item.WhichOneof("content") for item in response.output]


def script(model: ScriptedTurns, *scripts: Script) -> None:
    """What the model says from now on."""
    model.choose = in_order(*scripts)


async def test_a_call_is_made_once_and_told_in_order(
    client: ResponseClient, shop: Shop, model: ScriptedTurns
) -> None:
    """The list, the call with its arguments and its output, the answer; the model sees them."""
    events = [event async for event in client.stream("Tea, please", tools=[remote(approval=NEVER)])]
    made = events[-1].completed

    assert shop.ordered == ["tea"]
    assert shop.authorizations == [SECRET]
    assert kinds(made) == ["mcp_list_tools", "mcp_call", "message"]
    assert made.output[1].mcp_call.output == "Ordered: tea"
    assert text_of(made) == "It is ordered"
    assert [tool.name for tool in model.requests[0].tools] == [
        "order",
        "wait",
        "break_down",
        "flood",
    ]
    assert model.requests[1].messages[-1].parts[0] == ("Ordered: tea",)
    assert names(events)[2:13] == [
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


async def test_a_chain_asks_a_server_once_what_it_offers(
    client: ResponseClient, model: ScriptedTurns
) -> None:
    """The next response goes on with the list, and may use less of it."""
    script(model, says("Hello"))
    first = await client.create("Hi", tools=[remote(approval=NEVER)])
    second = await client.create(
        "And now?",
        previous_response_id=first.id,
        tools=[remote(approval=NEVER, limits_tools=True, allowed_tools=["order"])],
    )

    assert kinds(first) == ["mcp_list_tools", "message"]
    assert kinds(second) == ["message"]
    assert [tool.name for tool in model.requests[-1].tools] == ["order"]


async def test_an_allowed_call_is_made_by_the_next_response(
    client: ResponseClient, shop: Shop
) -> None:
    """Until then nothing is done; a word counts once."""
    asked = await client.create("Tea", tools=[remote()])
    request = asked.output[-1]
    assert (kinds(asked)[-1], shop.ordered) == ("mcp_approval_request", [])
    assert request.id.startswith("mcpr_")
    assert request.mcp_approval_request.arguments_json == '{"ware":"tea"}'

    yes = word(request.id, approve=True)
    done = await client.create(yes, previous_response_id=asked.id, tools=[remote()])

    assert shop.ordered == ["tea"]
    assert kinds(done) == ["mcp_call", "message"]
    assert done.output[0].mcp_call.approval_request_id == request.id
    assert done.output[0].mcp_call.output == "Ordered: tea"
    for words, previous in (([yes], done.id), ([yes, yes], asked.id)):
        with pytest.raises(InvalidField, match="no pending approval"):
            await client.create(*words, previous_response_id=previous, tools=[remote()])
    assert shop.ordered == ["tea"]


@pytest.mark.parametrize("store", [True, False])
async def test_a_word_counts_for_one_of_those_that_go_on(
    client: ResponseClient, shop: Shop, model: ScriptedTurns, store: bool
) -> None:
    """A client that has lost an answer asks again by itself: while the first one is at work, and
    when it has ended. The model need not have called: the call comes before its turn."""
    asked = await client.create("Tea", tools=[remote()])
    yes = word(asked.output[-1].id, approve=True)
    again: dict[str, Any] = {"previous_response_id": asked.id, "tools": [remote()]}
    reached, gate = asyncio.Event(), asyncio.Event()

    async def wait(_request: TurnRequest, _number: int) -> None:
        reached.set()
        await gate.wait()

    model.before_token = wait
    begun = await client.create(yes, background=True, **again)
    with pytest.raises(InvalidField, match="no pending approval"):
        await client.create(yes, store=store, **again)
    await reached.wait()
    gate.set()
    ended = [event async for event in client.watch(begun.id)][-1].completed
    with pytest.raises(InvalidField, match="no pending approval"):
        await client.create(yes, store=store, **again)
    other = await client.create("Never mind", **again)

    assert kinds(ended) == ["mcp_call", "message"]
    assert shop.ordered == ["tea"]
    assert other.state == COMPLETED


async def test_a_word_that_led_to_no_call_can_be_said_again(
    client: ResponseClient, shop: Shop
) -> None:
    """What was refused has used nothing up."""
    asked = await client.create("Tea", tools=[remote()])
    yes = word(asked.output[-1].id, approve=True)
    with pytest.raises(InvalidField, match="needs the server"):
        await client.create(yes, previous_response_id=asked.id)
    await client.create(yes, previous_response_id=asked.id, tools=[remote()])

    assert shop.ordered == ["tea"]


async def test_a_conversation_goes_on_with_a_word_once(client: ResponseClient, shop: Shop) -> None:
    """A call that was allowed and made is not made again by the same word."""
    conversations = ConversationServiceStub(client.client.channel)
    made = await conversations.CreateConversation(
        conversation_service_pb2.CreateConversationRequest(), metadata=client.client.metadata
    )
    within: dict[str, Any] = {"conversation_id": made.conversation.id, "tools": [remote()]}
    asked = await client.create("Tea", **within)
    yes = word(asked.output[-1].id, approve=True)
    done = await client.create(yes, **within)
    with pytest.raises(InvalidField, match="no pending approval"):
        await client.create(yes, **within)

    assert kinds(asked)[-1] == "mcp_approval_request"
    assert kinds(done) == ["mcp_call", "message"]
    assert shop.ordered == ["tea"]


@pytest.mark.parametrize("store", [True, False])
async def test_a_word_in_a_list_that_its_caller_keeps(
    client: ResponseClient, shop: Shop, store: bool
) -> None:
    """Whoever names no earlier response gives the question back with the word: it keeps its id, or
    gets another one, where a stored item has that, and the word is about it all the same."""
    asked = await client.create("Tea", tools=[remote()], store=store)
    yes = word(asked.output[-1].id, approve=True)
    done = await client.create("Tea", *asked.output, yes, tools=[remote()], store=store)

    assert kinds(done) == ["mcp_call", "message"]
    assert shop.ordered == ["tea"]
    about = done.output[0].mcp_call.approval_request_id
    assert (about == asked.output[-1].id) is not store


async def test_a_long_result_is_summed_up_before_the_next_turn(
    running: RunningControl, client: ResponseClient, shop: Shop, model: ScriptedTurns
) -> None:
    """Between two turns of one response, once, also where the engine dies behind the summary; the
    call is made once, and what follows goes on from the summary."""
    shop.small_print = " and" * 1100
    summary = "Summary of the conversation so far:\n\nMuch tea"

    def choose(request: TurnRequest) -> Script:
        texts = texts_of(request)
        if texts[-1].startswith("Sum up"):
            return says("Much tea")
        return says("It is ordered") if summary in texts else ORDER

    model.choose = choose
    running.clock.step_s = 1  # so that the wait between two attempts passes
    model.troubles = [100, 100, 1]
    made = await client.create("Go", tools=[remote(approval=NEVER)], compact_threshold=1000)
    after = await client.create("And?", previous_response_id=made.id)

    assert shop.ordered == ["tea"]
    assert kinds(made) == ["mcp_list_tools", "mcp_call", "compaction", "message"]
    assert text_of(made) == text_of(after) == "It is ordered"
    assert texts_of(model.requests[1])[:3] == ["Go", "", f"Ordered: tea{shop.small_print}"]
    assert texts_of(model.requests[-1]) == [summary, "Go", "It is ordered", "And?"]
    spoken = (ORDER, says("Much tea"), says("It is ordered"))
    assert made.usage.output_tokens == sum(len(script.deltas) for script in spoken)


async def test_what_a_server_offers_outlives_a_summary(
    running: RunningControl, client: ResponseClient, model: ScriptedTurns
) -> None:
    """It is asked once in a chain, also where the engine dies in the turn behind the summary: that
    turn goes on with the tools that it began with, and nothing is told within it."""
    model.choose = lambda _request: says("So be it")
    tools = [remote(approval=NEVER)]
    first = await client.create("a " * 1100, tools=tools)
    running.clock.step_s = 1  # so that the wait between two attempts passes
    model.troubles = [100, 1]
    made = await client.create(
        "b", previous_response_id=first.id, tools=tools, compact_threshold=1000
    )
    after = await client.create("c", previous_response_id=made.id, tools=tools)

    assert kinds(made) == ["compaction", "message"]
    assert kinds(after) == ["message"]
    assert text_of(made) == "So be it"
    offered = [[tool.name for tool in request.tools] for request in model.requests]
    assert offered[0] == offered[2] == offered[3] == offered[4] != []


def texts_of(request: TurnRequest) -> list[str]:
    """What the model was shown."""
    return [
        "".join(part.text for part in message.parts if isinstance(part, TextPart))
        for message in request.messages
    ]


async def test_a_refused_call_is_not_made_and_the_model_hears_why(
    client: ResponseClient, shop: Shop, model: ScriptedTurns
) -> None:
    """It may answer, or try something else."""
    asked = await client.create("Tea", tools=[remote()])
    no = word(asked.output[-1].id, approve=False, reason="Too dear.")
    done = await client.create(no, previous_response_id=asked.id, tools=[remote()])

    assert (kinds(done), shop.ordered) == (["message"], [])
    assert model.requests[-1].messages[-1].parts[0] == (
        "The user did not allow this call. Too dear.",
    )


async def test_an_allowed_call_needs_its_server(client: ResponseClient, shop: Shop) -> None:
    """Nothing is done for a request that does not name it any more."""
    asked = await client.create("Tea", tools=[remote()])
    yes = word(asked.output[-1].id, approve=True)
    with pytest.raises(InvalidField) as error:
        await client.create(yes, previous_response_id=asked.id)

    assert (error.value.field, shop.ordered) == ("tools", [])


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("break_down", "{}", "the shop is on fire"),
        ("flood", "{}", "16384 bytes"),
        ("order", "[]", "not a JSON object"),
        ("order", "{}", "ware"),
    ],
)
async def test_a_call_that_fails_is_a_result(
    client: ResponseClient, model: ScriptedTurns, name: str, arguments: str, problem: str
) -> None:
    """Which the model reads, and readers are told of."""
    script(model, calls(name, arguments), says("Sorry"))
    events = [event async for event in client.stream("Go", tools=[remote(approval=NEVER)])]
    call = events[-1].completed.output[1].mcp_call

    assert problem in call.problem
    assert not call.HasField("output")
    assert "mcp_call_failed" in names(events)
    assert text_of(events[-1].completed) == "Sorry"


async def test_a_server_that_cannot_be_asked_costs_its_tools_alone(
    client: ResponseClient, model: ScriptedTurns
) -> None:
    """The answer comes without them, and the next response asks again."""
    script(model, says("Hello"))
    dead = tool_pb2.Tool(mcp=tool_pb2.McpTool(server_label="dead"))
    events = [event async for event in client.stream("Hi", tools=[dead])]
    made = events[-1].completed
    again = await client.create("Hi", previous_response_id=made.id, tools=[dead])

    assert "mcp_list_tools_failed" in names(events)
    assert "dead" in made.output[0].mcp_list_tools.problem
    assert kinds(made) == kinds(again) == ["mcp_list_tools", "message"]


async def test_only_servers_of_the_operator_are_named(client: ResponseClient) -> None:
    """And each once."""
    with pytest.raises(UnsupportedValue) as unknown:
        await client.create("Hi", tools=[tool_pb2.Tool(mcp=tool_pb2.McpTool(server_label="else"))])
    with pytest.raises(InvalidField) as twice:
        await client.create("Hi", tools=[remote(), remote()])

    assert unknown.value.field == twice.value.field.replace("[1]", "[0]") == "tools[0].server_label"


async def test_a_client_keeps_the_names_of_its_functions(
    client: ResponseClient, shop: Shop, model: ScriptedTurns
) -> None:
    """A remote tool of the same name gets another one, under which it is called."""
    mine = tool_pb2.Tool(function=tool_pb2.FunctionTool(name="order"))
    script(model, calls("shop_order", '{"ware":"tea"}'), says("It is ordered"))
    made = await client.create("Tea", tools=[remote(approval=NEVER), mine])

    assert (made.output[1].mcp_call.name, shop.ordered) == ("order", ["tea"])
    assert made.state == COMPLETED


async def test_nothing_is_stored_and_the_call_is_made(client: ResponseClient, shop: Shop) -> None:
    """A response that leaves nothing behind uses the same tools."""
    made = await client.create("Tea", tools=[remote(approval=NEVER)], store=False)

    assert (kinds(made), shop.ordered) == (["mcp_list_tools", "mcp_call", "message"], ["tea"])


async def test_a_call_that_was_made_ends_what_cannot_go_on(
    client: ResponseClient, shop: Shop, model: ScriptedTurns
) -> None:
    """Nothing is stored, so the next attempt would call again, and clients begin one by themselves
    where they are told to come again."""
    model.troubles = [99, 0]  # the engine dies in the second turn
    made = await client.create("Tea", tools=[remote(approval=NEVER)], store=False)

    assert (made.state, shop.ordered) == (FAILED, ["tea"])
    assert kinds(made) == ["mcp_list_tools", "mcp_call"]
