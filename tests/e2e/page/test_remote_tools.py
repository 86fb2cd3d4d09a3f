"""Tools of MCP servers in the chat of the page: approvals, calls and their outputs, in Chromium."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Route, expect

from tests.support.browser import NARROW, WIDE, Tab, needs_chromium, open_tab
from tests.support.chat_page import READ_STORED, answers, ask, fold, unfold
from tests.support.mcp_server import LABEL, Shop, run_shop
from tests.support.services import Corral, corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]

LIMITS = {"temperature": 0, "max_output_tokens": 60, "max_tool_calls": 1}
QUESTION = "Order tea."


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with run_shop() as running:
        yield running


@pytest.fixture(scope="module")
def server(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """A Corral whose operator has configured the shop."""
    settings = {"mcp_servers": [{"label": LABEL, "url": shop.url}]}
    with corral_up(tmp_path_factory.mktemp("tools"), control=settings) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", params=[WIDE, NARROW])
async def customer(
    request: pytest.FixtureRequest, browser: Browser, server: Corral
) -> AsyncIterator[Tab]:
    """A tab whose chat uses the tools of the shop, wide and narrow."""
    async with open_tab(browser, server.url, width=request.param) as tab:
        await tab.page.route("**/v1/responses", demand_order)
        await tab.go("chat")
        await unfold(tab, "Settings")
        await tab.page.get_by_text("Tools of the server").click()
        await tab.page.get_by_label(LABEL, exact=True).check()
        await fold(tab, "Settings")
        yield tab
        assert await tab.overflow() == 0


async def demand_order(route: Route) -> None:
    """Let the model order where it has not asked for that: it was not trained with such tools."""
    body: Any = route.request.post_data_json
    (tool,) = body["tools"]
    is_answered = body["input"][-1]["type"] == "mcp_approval_response"
    choice = "none" if is_answered else {"type": "mcp", "server_label": LABEL}
    changes = {"tools": [tool | {"allowed_tools": ["order"]}], "tool_choice": choice, **LIMITS}
    await route.continue_(post_data=json.dumps(body | changes))


async def demand_waiting(route: Route) -> None:
    """Let the model call a tool that never returns, without approval."""
    body: Any = route.request.post_data_json
    (tool,) = body["tools"]
    tool |= {"allowed_tools": ["wait"], "require_approval": "never"}
    choice = {"type": "mcp", "server_label": LABEL}
    changes = {"tools": [tool], "tool_choice": choice, **LIMITS}
    await route.continue_(post_data=json.dumps(body | changes))


def call_of(tab: Tab) -> Locator:
    """The last call of the tool."""
    return answers(tab).get_by_role("group", name="Tool call: order of shop").last


async def test_an_approved_call_is_made_once(customer: Tab, shop: Shop) -> None:
    """It waits for the approval, then its output is shown, also after a reload; the next question
    has it, and asks again."""
    before = len(shop.ordered)
    await ask(customer, QUESTION)
    await expect(call_of(customer).get_by_label("Arguments of order")).to_contain_text("ware")
    assert len(shop.ordered) == before
    await call_of(customer).get_by_role("button", name="Approve").press("Enter")
    output = answers(customer).last.get_by_label("Output of order")
    await expect(output).to_contain_text("Ordered: ")
    await expect(answers(customer).last.get_by_role("button", name="Regenerate")).to_be_visible()
    await customer.page.reload()
    await expect(output).to_contain_text("Ordered: ")
    async with customer.sends("**/v1/responses") as body:
        await ask(customer, QUESTION)
    await expect(call_of(customer).get_by_role("button", name="Approve")).to_be_visible()

    assert len(shop.ordered) == before + 1
    types = [item["type"] for item in body["input"]]
    assert types.count("mcp_call") == 1
    assert "mcp_approval_request" not in types


async def test_a_call_is_made_once_if_two_tabs_approve_it(
    customer: Tab, server: Corral, shop: Shop
) -> None:
    """Also if the second one has not heard of the first approval, as a tab that browsers froze."""
    before = len(shop.ordered)
    await ask(customer, QUESTION)
    await call_of(customer).get_by_role("button", name="Approve").wait_for()
    other = Tab(await customer.page.context.new_page(), server.url)
    await other.page.add_init_script("BroadcastChannel.prototype.addEventListener = () => {}")
    await other.page.route("**/v1/responses", demand_order)
    await other.go("chat")
    await unfold(other, "Chats")
    await other.page.get_by_role("list", name="Chats").get_by_role("link").first.click()
    await fold(other, "Chats")
    approve = call_of(other).get_by_role("button", name="Approve")
    await approve.wait_for()
    await call_of(customer).get_by_role("button", name="Approve").click()
    await expect(answers(customer)).to_have_count(2)
    await expect(answers(customer).last.get_by_role("button", name="Regenerate")).to_be_visible()
    await approve.click()
    await other.page.evaluate(READ_STORED, "messages")  # behind the decision

    await expect(answers(other)).to_have_count(1)
    assert len(shop.ordered) == before + 1
    await other.page.close()


async def test_a_refused_call_is_not_made(customer: Tab, shop: Shop) -> None:
    """The model answers without it; another message refuses what was not decided."""
    before = len(shop.ordered)
    await ask(customer, QUESTION)
    await call_of(customer).get_by_role("button", name="Refuse").wait_for()
    async with customer.sends("**/v1/responses") as body:
        await call_of(customer).get_by_role("button", name="Refuse").click()
    assert body["input"][-1]["approve"] is False
    await expect(answers(customer)).to_have_count(2)
    await expect(answers(customer).last.get_by_role("button", name="Regenerate")).to_be_visible()
    await expect(call_of(customer)).to_contain_text("Refused.")
    await ask(customer, QUESTION)
    await call_of(customer).get_by_role("button", name="Approve").wait_for()
    async with customer.sends("**/v1/responses") as body:
        await ask(customer, QUESTION)

    given = [item["approve"] for item in body["input"] if "approve" in item]
    assert given == [False, False]
    assert len(shop.ordered) == before


async def test_a_tool_is_approved_for_a_chat(customer: Tab, shop: Shop) -> None:
    """Later calls of it are made at once, but not those of another chat."""
    before = len(shop.ordered)
    await ask(customer, QUESTION)
    await call_of(customer).get_by_role("button", name="Always in this chat").click()
    await expect(answers(customer)).to_have_count(2)
    await expect(answers(customer).last.get_by_role("button", name="Regenerate")).to_be_visible()
    await customer.page.reload()
    await ask(customer, QUESTION)
    await expect(answers(customer).last.get_by_label("Output of order")).to_be_visible()
    assert len(shop.ordered) == before + 2
    await expect(answers(customer).last.get_by_role("button", name="Regenerate")).to_be_visible()
    await unfold(customer, "Chats")
    await customer.page.get_by_role("button", name="New chat").click()
    await ask(customer, QUESTION)

    await expect(call_of(customer).get_by_role("button", name="Approve")).to_be_visible()
    assert len(shop.ordered) == before + 2


async def test_another_answer_asks_again(customer: Tab, shop: Shop) -> None:
    """An approval counts once, so Regenerate goes back before the call that was approved."""
    before = len(shop.ordered)
    await ask(customer, QUESTION)
    await call_of(customer).get_by_role("button", name="Approve").click()
    await expect(answers(customer)).to_have_count(2)
    await answers(customer).last.get_by_role("button", name="Regenerate").click()

    await expect(answers(customer)).to_have_count(1)
    await expect(call_of(customer).get_by_role("button", name="Approve")).to_be_visible()
    assert len(shop.ordered) == before + 1


async def test_a_call_that_was_made_is_stored(customer: Tab, shop: Shop) -> None:
    """With its output, when the chat becomes a conversation, and comes back from there."""
    await ask(customer, QUESTION)
    await call_of(customer).get_by_role("button", name="Approve").click()
    await expect(answers(customer)).to_have_count(2)
    await expect(answers(customer).last.get_by_role("button", name="Regenerate")).to_be_visible()
    await unfold(customer, "Chats")
    await customer.page.get_by_role("button", name="Store as a conversation").click()
    await expect(customer.page.get_by_role("region", name="mcp call order")).to_be_visible()
    await customer.page.get_by_role("button", name="Open a copy in the chat").click()

    await expect(answers(customer).get_by_label("Output of order")).to_contain_text("Ordered: ")


async def test_a_call_that_was_interrupted_is_not_made_again(customer: Tab, shop: Shop) -> None:
    """The model is told, whether the call had begun or the approval did not arrive."""
    page = customer.page
    customer.allowed = ("Failed to load resource: net::ERR_FAILED",)
    await page.route("**/v1/responses", demand_waiting)
    await ask(customer, QUESTION)
    waiting = answers(customer).get_by_role("group", name="Tool call: wait of shop")
    await expect(waiting).to_contain_text("It runs.")
    await page.get_by_role("button", name="Stop").click()
    await expect(waiting).to_contain_text("It was interrupted.")
    await page.unroute("**/v1/responses", demand_waiting)
    async with customer.sends("**/v1/responses") as body:
        await ask(customer, QUESTION)
    (call,) = [item for item in body["input"] if item["type"] == "mcp_call"]
    assert call["error"] == "The call was interrupted: what it did is not known."
    approve = call_of(customer).get_by_role("button", name="Approve")
    await approve.wait_for()
    before = len(shop.ordered)
    await page.route("**/v1/responses", lambda route: route.abort(), times=1)
    await approve.click()
    await expect(answers(customer).last.get_by_role("alert")).to_be_visible()
    async with customer.sends("**/v1/responses") as body:
        await ask(customer, QUESTION)
    await approve.wait_for()

    assert [item["approve"] for item in body["input"] if "approve" in item] == [False]
    assert len(shop.ordered) == before
