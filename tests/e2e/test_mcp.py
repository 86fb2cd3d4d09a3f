"""Remote MCP tools with the official SDK and the demo model, and a kill during a call."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.mcp_server import LABEL, Shop, run_shop
from tests.support.sdk_batches import CONTROL, kill_process
from tests.support.services import MODEL, Corral, corral_up

pytestmark = pytest.mark.e2e

TOOL_WITHOUT_APPROVAL: Any = {"type": "mcp", "server_label": LABEL, "require_approval": "never"}
NAMED: Any = {"type": "mcp", "server_label": LABEL}
SHORT_ANSWER: Any = {"temperature": 0, "max_output_tokens": 60}
"""The demo model was not trained with MCP tools, so sampled answers may be endless."""


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with run_shop() as running:
        yield running


@pytest.fixture(scope="module")
def server(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """A Corral with the server configured, whose processes may be killed."""
    settings = {"jobs.lease_s": 2, "mcp_servers": [{"label": LABEL, "url": shop.url}]}
    with corral_up(tmp_path_factory.mktemp("mcp"), control=settings) as running:
        yield running


def test_the_sdk_calls_a_remote_tool_with_and_without_approval(
    retrying_client: openai.OpenAI, shop: Shop
) -> None:
    """Every item has the type of the SDK."""
    only = {"allowed_tools": ["order"]}
    made = retrying_client.responses.create(
        model=MODEL,
        input="Order tea.",
        tools=[TOOL_WITHOUT_APPROVAL | only],
        tool_choice=NAMED,
        max_tool_calls=1,
        **SHORT_ANSWER,
    )
    listed, call, *_ = made.output
    assert listed.type == "mcp_list_tools"
    assert "order" in [tool.name for tool in listed.tools]
    assert call.type == "mcp_call"
    assert (call.output, call.error) == (f"Ordered: {shop.ordered[-1]}", None)

    asking: Any = {"type": "mcp", "server_label": LABEL} | only
    waiting = retrying_client.responses.create(
        model=MODEL,
        input="More.",
        tools=[asking],
        tool_choice=NAMED,
        previous_response_id=made.id,
        **SHORT_ANSWER,
    )
    num_ordered = len(shop.ordered)
    [request] = waiting.output
    assert request.type == "mcp_approval_request"
    approved = retrying_client.responses.create(
        model=MODEL,
        input=[
            {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        ],
        tools=[asking],
        tool_choice="none",
        previous_response_id=waiting.id,
        **SHORT_ANSWER,
    )

    assert approved.output[0].type == "mcp_call"
    assert approved.output[0].approval_request_id == request.id
    assert len(shop.ordered) == num_ordered + 1


def test_an_interrupted_call_is_not_repeated(
    server: Corral, retrying_client: openai.OpenAI, shop: Shop
) -> None:
    """The control service is killed before the result: the call fails, the response continues."""
    before = len(shop.ordered)
    made = retrying_client.responses.create(
        model=MODEL,
        input="Order tea.",
        tools=[TOOL_WITHOUT_APPROVAL | {"allowed_tools": ["wait"]}],
        tool_choice=NAMED,
        max_tool_calls=1,
        background=True,
        **SHORT_ANSWER,
    )
    assert shop.began.wait(60)
    kill_process(server, CONTROL)
    ended = retrying_client.responses.retrieve(made.id)
    while ended.status in ("queued", "in_progress"):
        ended = retrying_client.responses.retrieve(made.id)

    call = next(item for item in ended.output if item.type == "mcp_call")
    assert call.output is None
    assert "it is not repeated" in (call.error or "")
    assert len(shop.ordered) == before + 1


def test_other_servers_are_refused(retrying_client: openai.OpenAI) -> None:
    elsewhere: Any = {"type": "mcp", "server_label": "else"}
    for tool, param in (
        (elsewhere, "tools[0].server_label"),
        (NAMED | {"server_url": "http://example.com/mcp"}, "tools[0].server_url"),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            retrying_client.responses.create(model=MODEL, input="Hi", tools=[tool])
        assert error.value.param == param
