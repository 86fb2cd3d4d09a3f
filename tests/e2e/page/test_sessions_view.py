"""The view of sessions: what each turn reused, and where its prompt broke."""

import re
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, expect

from tests.support.browser import NARROW, WIDE, Tab, in_both_browsers, needs_chromium, open_tab
from tests.support.services import MODEL, Corral

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]

AWAY = {"error": {"message": "The service is starting.", "type": "server_error"}}


async def converse(corral: Corral, session: str) -> None:
    """Three turns of an agent, of which the last has another rule in its system prompt."""
    rules = [f"Rule {number} of {session} is to be kind to animals." for number in range(60)]
    messages: list[dict[str, Any]] = [{"role": "system", "content": "\n".join(rules)}]
    async with httpx.AsyncClient(base_url=corral.api, trust_env=False, timeout=120) as client:
        for turn in range(3):
            if turn == 2:
                rules[10] = "Rule 10 is to be quiet."
                messages[0] = {"role": "system", "content": "\n".join(rules)}
            messages.append({"role": "user", "content": f"This is question {turn}."})
            body = {"model": MODEL, "messages": messages, "max_tokens": 8, "ignore_eos": True}
            answer = await client.post(
                "/chat/completions", json=body | {"prompt_cache_key": session}
            )
            assert answer.is_success, answer.text
            messages.append({"role": "assistant", "content": "Yes."})


@in_both_browsers
@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_the_turns_of_a_session_are_shown(
    browser: Browser, server: Corral, width: int
) -> None:
    """By the keyboard, after a reload, and on the way back. Of the broken prefix the field and the
    token are shown."""
    name = f"agent {width} {browser.browser_type.name}"
    await converse(server, name)
    async with open_tab(browser, server.url, width=width) as tab:
        await tab.go("sessions")
        sessions = tab.page.get_by_role("region", name="Sessions")
        row = sessions.get_by_role("row").filter(has_text=name)
        await expect(row.get_by_role("cell").nth(4)).to_have_text("3")
        await expect(row.get_by_role("cell").nth(5)).to_have_text("1")
        await row.get_by_role("link").focus()
        await tab.page.keyboard.press("Enter")
        await expect(tab.page.get_by_role("heading", name=name)).to_be_visible()
        await tab.page.reload()
        turns = tab.page.get_by_role("region", name="Turns").get_by_role("row")
        await expect(turns).to_have_count(4)
        await expect(turns.nth(2)).not_to_contain_text("messages")
        await expect(turns.nth(3)).to_contain_text("messages[0].content")
        await expect(turns.nth(3)).to_contain_text("length")
        plot = tab.page.get_by_role("img", name="Reused part of the prompt by turn")
        await expect(plot).to_have_attribute("aria-label", re.compile(r"2: 9\d, 3: [1-5]\d$"))
        speeds = tab.page.get_by_role("img", name="Generated tokens a second by turn")
        await expect(speeds).to_have_attribute("aria-label", re.compile(r"3: [1-9]"))
        assert await tab.overflow() == 0
        await tab.page.go_back()
        await expect(row).to_be_visible()
        assert await tab.overflow() == 0


async def test_an_unknown_session_has_no_turns(tab: Tab) -> None:
    await tab.go("sessions/none")
    await expect(tab.page.get_by_text("No turn of this session is recorded.")).to_be_visible()
    await tab.page.get_by_role("link", name="All sessions").click()
    await expect(tab.page.get_by_text("since the service started")).to_be_visible()


async def test_more_sessions_are_shown_on_demand(tab: Tab) -> None:
    """Also of several replicas, which send all at once."""
    counts = {"num_turns": 1, "prompt_tokens": "8", "cached_tokens": "0", "completion_tokens": "1"}
    listed = [
        {"session_id": f"s{number}", "end_time": "2026-11-30T05:00:00Z", "project": "red"} | counts
        for number in range(60)
    ]
    reply = {"sessions": listed, "next_page_token": "", "record_time": "2026-11-30T04:00:00Z"}
    await tab.page.route("**/admin/sessions*", lambda route: route.fulfill(json=reply))
    await tab.go("sessions")
    rows = tab.page.get_by_role("region", name="Sessions").get_by_role("row")
    await expect(rows).to_have_count(51)
    await tab.page.get_by_role("button", name="Show more").click()
    await expect(rows).to_have_count(61)
    await expect(tab.page.get_by_role("button", name="Show more")).to_have_count(0)
    await tab.page.unroute_all(behavior="ignoreErrors")


@pytest.mark.parametrize("status", [429, 503])
async def test_what_is_shown_stays_while_the_service_is_away(
    tab: Tab, server: Corral, status: int
) -> None:
    tab.allowed = (f"Failed to load resource: the server responded with a status of {status}",)
    await converse(server, f"away {status}")
    await tab.go("sessions")
    row = tab.page.get_by_role("row").filter(has_text=f"away {status}")
    await expect(row).to_be_visible()
    await tab.page.route(
        "**/admin/sessions*", lambda route: route.fulfill(status=status, json=AWAY)
    )
    await expect(tab.page.get_by_text(AWAY["error"]["message"])).to_be_visible()
    await expect(row).to_be_visible()
    await tab.page.unroute_all(behavior="ignoreErrors")
    await expect(tab.page.get_by_text("The server can be reached again.")).to_be_visible()
