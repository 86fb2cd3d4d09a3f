"""Followed streams of the page while the network is away, in Chromium with the demo model."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from tests.support.browser import NARROW, WIDE, Tab, needs_chromium, open_tab
from tests.support.network import Network, run_network
from tests.support.services import MODEL, Corral

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]

OFFLINE = ("Failed to load resource: net::ERR_",)
EVENTS_BYTES = 40_000
"""About a hundred events; an answer that does not end has thousands."""
AWAY = {"error": {"message": "A service is away.", "code": "upstream_unavailable"}}
BROKEN = "This goes on when the server can be reached again."


@pytest_asyncio.fixture(loop_scope="module")
async def api(server: Corral) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.api, trust_env=False, timeout=60) as client:
        yield client


async def create(api: httpx.AsyncClient, path: str, **body: Any) -> Any:
    """The object that a POST creates."""
    return (await api.post(f"/{path}", json=body)).raise_for_status().json()


def letters(text: str | None) -> str:
    """Without what Markdown changes when more comes, as where a list gets space between items."""
    return re.sub(r"\W", "", text or "")


async def lose_network_for_a_while(tab: Tab, network: Network, text: Locator) -> None:
    """Until the page says so, after `EVENTS_BYTES`; `text` goes on behind what had come.

    It has begun before: until then other things come, such as files that the page's worker keeps.
    """
    await text.wait_for()
    network.left_bytes = EVENTS_BYTES
    await expect(tab.page.get_by_text(BROKEN)).to_be_visible()
    before = await text.text_content() or ""
    network.mend()
    await expect(tab.page.get_by_text(BROKEN)).to_have_count(0)
    await expect(text).not_to_have_text(before)
    start = letters(before)
    after = letters(await text.text_content())
    assert after.startswith(start)
    assert not after.removeprefix(start).startswith(start[:40])  # it did not begin again


@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_a_run_goes_on_when_the_network_is_back(
    browser: Browser, server: Corral, api: httpx.AsyncClient, width: int
) -> None:
    """One that this view began, and what the server wrote meanwhile is there."""
    await create(api, "assistants", model=MODEL, name=f"Teller {width}", ignore_eos=True)
    thread = await create(api, "threads")
    async with (
        run_network(server.url) as network,
        open_tab(browser, network.url, width=width, allowed=OFFLINE) as tab,
    ):
        await tab.go(f"threads/{thread['id']}")
        form = tab.page.get_by_role("form", name="Run")
        await form.get_by_label("Message").fill("Tell me a story about a fox.")
        await form.get_by_label("Assistant").select_option(f"Teller {width}")
        await form.get_by_role("button", name="Add and run").click()
        text = tab.page.get_by_role("article", name="Model").locator(".markdown")
        await lose_network_for_a_while(tab, network, text)
        (run,) = (await api.get(f"/threads/{thread['id']}/runs")).json()["data"]
        await api.post(f"/threads/{thread['id']}/runs/{run['id']}/cancel")
        await expect(tab.page.get_by_role("log")).to_have_attribute("aria-busy", "false")
        await expect(tab.page.get_by_role("article", name="Model")).to_have_count(1)


async def test_a_background_response_goes_on_when_the_network_is_back(
    browser: Browser, server: Corral, api: httpx.AsyncClient
) -> None:
    body = {"input": "Tell me a story about a fox.", "ignore_eos": True}
    async with (
        run_network(server.url) as network,
        open_tab(browser, network.url, allowed=OFFLINE) as tab,
    ):
        await tab.go("responses")
        await tab.page.get_by_text("New response").wait_for()
        response = await create(api, "responses", model=MODEL, background=True, **body)
        await tab.go(f"responses/{response['id']}")
        text = tab.page.get_by_role("group", name="Output").locator(".markdown")
        await lose_network_for_a_while(tab, network, text)
        await api.post(f"/responses/{response['id']}/cancel")
        await expect(tab.page.get_by_role("button", name="Cancel")).to_have_count(0)


async def test_a_stream_goes_on_when_a_service_behind_the_gateway_is_back(
    tab: Tab, api: httpx.AsyncClient
) -> None:
    """As after a restart of the control service, of which the gateway tells in the stream."""
    body = {"input": "Tell me a story about a fox.", "ignore_eos": True}
    response = await create(api, "responses", model=MODEL, background=True, **body)
    frame = f"event: error\ndata: {json.dumps({'type': 'error', **AWAY})}\n\n"
    await tab.page.route(
        "**/v1/responses/*?stream=true*",
        lambda route: route.fulfill(content_type="text/event-stream", body=frame),
        times=1,
    )
    await tab.go(f"responses/{response['id']}")
    await expect(tab.page.get_by_text(BROKEN)).to_be_visible()
    await expect(tab.page.get_by_text(BROKEN)).to_have_count(0)
    await expect(tab.page.get_by_role("group", name="Output").locator(".markdown")).to_be_visible()
    await api.post(f"/responses/{response['id']}/cancel")


@pytest.mark.parametrize("status", [429, 503])
async def test_what_is_shown_stays_while_a_service_behind_the_gateway_is_away(
    tab: Tab, status: int
) -> None:
    """Or has too much to do: such as a form that is half filled."""
    tab.allowed = (f"Failed to load resource: the server responded with a status of {status}",)
    await tab.go("load")
    slots = tab.page.get_by_role("progressbar", name="Slots")
    await expect(slots).to_be_visible()
    await tab.page.route("**/admin/load", lambda route: route.fulfill(status=status, json=AWAY))
    await expect(tab.page.get_by_text(AWAY["error"]["message"])).to_be_visible()
    await expect(slots).to_be_visible()
    await tab.page.unroute("**/admin/load")

    await expect(tab.page.get_by_text("The server can be reached again.")).to_be_visible()


async def test_what_is_shown_stays_while_the_network_is_away(tab: Tab) -> None:
    """A view that reads again says so, and when the server is there again."""
    tab.allowed = OFFLINE
    await tab.go("load")
    slots = tab.page.get_by_role("progressbar", name="Slots")
    await expect(slots).to_be_visible()
    await tab.page.context.set_offline(True)
    await expect(tab.page.get_by_text("The server cannot be reached.")).to_be_visible()
    await expect(slots).to_be_visible()
    await tab.page.context.set_offline(False)

    await expect(tab.page.get_by_text("The server can be reached again.")).to_be_visible()
