"""The chats that the page keeps, in Chromium with the demo model."""

import asyncio
import json
import time

import httpx
import pytest
from playwright.async_api import Browser, Route, expect

from tests.support.browser import Tab, in_both_browsers, needs_chromium, open_tab
from tests.support.chat_page import answers, ask, ask_and_wait, open_chat
from tests.support.rpc import CAPITAL
from tests.support.services import MODEL, Corral

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]

ITALY = "What is the capital of Italy?"
WAIT_UNTIL_KEPT = """async () => {
  const files = performance.getEntriesByType("resource").map(({ name }) => name);
  const wanted = files.filter(each => /\\.(m?js|css)$/.test(each));
  wanted.push(location.href.split("#")[0]);
  const isKept = async url => Boolean(await caches.match(url));
  while (!(await Promise.all(wanted.map(isKept))).every(Boolean)) {
    await new Promise(resolve => { setTimeout(resolve, 20); });
  }
}"""
"""Ends when the worker of the page has stored all of its files."""
COUNT_SANITIZED = """
window.sanitized = window.grouped = 0;
const group = Map.groupBy;
Map.groupBy = (...parts) => {
  window.grouped++;
  return group.apply(Map, parts);
};
const parse = DOMParser.prototype.parseFromString;
DOMParser.prototype.parseFromString = function (...parts) {
  window.sanitized++;
  return parse.apply(this, parts);
};
"""
"""DOMPurify parses each text that it sanitizes with the browser's parser; the chat groups all of
its messages by those that they answer."""
STORE_FOR_EVER = """
const put = IDBObjectStore.prototype.put;
const isReload = performance.getEntriesByType("navigation")[0].type === "reload";
IDBObjectStore.prototype.put = function (value) {
  const goOn = () => { this.count().onsuccess = goOn; };
  if (STATES.includes(value.state) && !isReload) goOn();
  return put.call(this, value);
};
"""
"""The transaction that stores an answer in such a state ends with the page, which undoes it."""


@in_both_browsers
async def test_a_new_chat_keeps_the_old_one(tab: Tab) -> None:
    """It is in the list under its first question, with its answers, also after a reload.

    The message box has the focus.
    """
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)
    await tab.page.get_by_role("button", name="New chat").click()
    await expect(answers(tab)).to_have_count(0)
    await expect(tab.page.get_by_role("textbox", name="Message", exact=True)).to_be_focused()
    await tab.page.reload()
    await tab.page.get_by_role("link", name=CAPITAL).click()

    await expect(answers(tab)).to_contain_text("Paris")
    await tab.page.reload()
    await expect(answers(tab)).to_contain_text("Paris")
    stored = await tab.page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
    assert CAPITAL not in stored


@in_both_browsers
async def test_chats_are_searched_renamed_pinned_and_deleted(tab: Tab) -> None:
    """The search finds titles and texts; deleting asks, and names the chat."""
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)
    await tab.page.get_by_role("button", name="New chat").click()
    await ask_and_wait(tab, ITALY)
    chats = tab.page.get_by_role("list", name="Chats")
    await tab.page.get_by_label("Search").fill("paris")
    await expect(chats.get_by_role("link")).to_have_text([CAPITAL])
    await chats.get_by_role("button", name="Rename").click()
    await tab.page.get_by_label("Name").fill("France")
    await tab.page.keyboard.press("Enter")
    await chats.get_by_role("button", name="Pin").click()
    await tab.page.get_by_label("Search").fill("")
    await expect(chats.get_by_role("link")).to_have_text(["★ France", ITALY])

    asked = asyncio.get_running_loop().create_future()

    async def accept(dialog: object) -> None:
        asked.set_result(dialog.message)  # type: ignore[attr-defined]
        await dialog.accept()  # type: ignore[attr-defined]

    tab.page.once("dialog", accept)
    await chats.get_by_role("button", name="Delete").first.click()
    await expect(chats.get_by_role("link")).to_have_text([ITALY])
    assert "France" in await asked


@in_both_browsers
async def test_a_reload_keeps_what_has_come_of_an_answer(tab: Tab) -> None:
    """The answer has stopped, and can be generated again."""
    await open_chat(tab)
    await tab.page.get_by_label("Other fields").fill(json.dumps({"ignore_eos": True, "seed": 1}))
    await ask(tab, "Tell me a story about a fox.")
    await answers(tab).locator(".markdown").wait_for()
    await tab.page.reload()

    await expect(answers(tab)).to_contain_text("stopped")
    assert await answers(tab).locator(".markdown").text_content()
    await expect(answers(tab).get_by_role("button", name="Regenerate")).to_be_visible()


@in_both_browsers
@pytest.mark.parametrize("state", ["running", "done"])
async def test_a_reload_keeps_an_answer_that_is_being_stored(tab: Tab, state: str) -> None:
    """Also the first one of a chat, which is not stored yet either."""
    await tab.page.add_init_script(f"const STATES = ['{state}'];{STORE_FOR_EVER}")
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)
    await tab.page.reload()

    await expect(answers(tab)).to_contain_text("Paris")
    await expect(answers(tab)).not_to_contain_text("stopped")


async def test_a_draft_survives_other_views_and_reloads(tab: Tab) -> None:
    """And the settings those of new chats, but not in another tab's draft."""
    await open_chat(tab)
    box = tab.page.get_by_role("textbox", name="Message", exact=True)
    await box.fill("Not yet sent")
    await tab.page.get_by_label("System message").fill("Be brief.")
    await tab.go("files")
    await tab.go("chat")
    await expect(box).to_have_value("Not yet sent")
    await tab.page.reload()

    await expect(box).to_have_value("Not yet sent")
    await tab.page.get_by_role("button", name="New chat").click()
    await expect(tab.page.get_by_label("System message")).to_have_value("Be brief.")


@in_both_browsers
async def test_a_chat_is_shown_in_two_tabs(tab: Tab) -> None:
    """What one of them adds appears in the other."""
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)
    other = Tab(await tab.page.context.new_page(), tab.url)
    await other.go("chat")
    await other.page.get_by_role("link", name=CAPITAL).click()
    await expect(answers(other)).to_contain_text("Paris")
    await ask_and_wait(other, ITALY)

    await expect(answers(tab).last).to_contain_text("Rome")
    await expect(answers(tab)).to_have_count(2)


@in_both_browsers
async def test_a_broken_stream_keeps_what_came(tab: Tab) -> None:
    """It is said that the answer is not whole."""

    async def break_off(route: Route) -> None:
        chunk = {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "Half an"}}]}
        await route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(chunk)}\n\n")

    await open_chat(tab)
    await tab.page.route("**/v1/chat/completions", break_off)
    await ask(tab, "Hello!")

    await expect(answers(tab)).to_contain_text("Half an")
    await expect(answers(tab).get_by_role("alert")).to_contain_text("before the answer was whole")


async def test_storage_that_is_full_is_said(tab: Tab) -> None:
    """The chat goes on without being kept."""
    await tab.page.add_init_script(
        """IDBObjectStore.prototype.put = function () {
          throw new DOMException("", "QuotaExceededError");
        };"""
    )
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)

    await expect(answers(tab)).to_contain_text("Paris")
    await expect(tab.page.get_by_text("storage is full")).to_be_visible()


@in_both_browsers
async def test_a_browser_without_storage_shows_the_chat(tab: Tab) -> None:
    """As where all data of pages is blocked. It is said that the chat is not kept."""
    await tab.page.add_init_script(
        """for (const name of ["localStorage", "sessionStorage", "indexedDB"]) {
          const refuse = () => { throw new DOMException("It is blocked.", "SecurityError"); };
          Object.defineProperty(window, name, { get: refuse });
        }"""
    )
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)

    await expect(answers(tab)).to_contain_text("Paris")
    await expect(tab.page.get_by_text("This chat is not kept: It is blocked.")).to_be_visible()


async def test_full_storage_does_not_keep_the_page_from_loading(tab: Tab) -> None:
    """The worker shows what the server sends also where it can keep nothing."""
    await open_chat(tab)
    await tab.page.evaluate("navigator.serviceWorker.ready.then(() => null)")
    (worker,) = tab.page.context.service_workers
    await worker.evaluate(
        """() => {
          caches.open("corral.page").then(cache => cache.delete("js/chat.js"));
          Cache.prototype.put = () => Promise.reject(new DOMException("", "QuotaExceededError"));
        }"""
    )
    await tab.page.reload()

    await expect(tab.page.get_by_label("Model", exact=True)).to_have_value(MODEL)


@in_both_browsers
async def test_former_answers_are_not_made_again(browser: Browser, server: Corral) -> None:
    """While an answer streams after a hundred others; of a long chat only the end is shown."""
    items = [
        {"type": "message", "role": role, "content": f"{role} {number}"}
        for number in range(100)
        for role in ("user", "assistant")
    ]
    async with httpx.AsyncClient(base_url=server.api, trust_env=False) as client:
        created = (await client.post("/conversations", json={"metadata": {"title": "Long"}})).json()
        for at in range(0, len(items), 20):
            path = f"/conversations/{created['id']}/items"
            (await client.post(path, json={"items": items[at : at + 20]})).raise_for_status()
    async with open_tab(browser, server.url) as tab:
        await tab.page.add_init_script(COUNT_SANITIZED)
        await tab.go(f"conversations/{created['id']}")
        await tab.page.get_by_role("button", name="Open a copy in the chat").click()
        log = tab.page.get_by_role("log")
        await expect(log.get_by_text("assistant 99", exact=True)).to_be_in_viewport()
        await expect(log.get_by_role("article")).to_have_count(40)
        before, grouped = await tab.page.evaluate("[window.sanitized, window.grouped]")
        await tab.page.get_by_label("Max tokens").fill("300")
        await tab.page.get_by_label("Other fields").fill(json.dumps({"ignore_eos": True}))
        begin = time.perf_counter()
        await ask_and_wait(tab, CAPITAL)
        seconds = time.perf_counter() - begin

        assert await tab.page.evaluate("window.sanitized") - before <= 600
        stored = 3 + seconds  # how often the answer was, or may have been
        assert await tab.page.evaluate("window.grouped") - grouped <= 2 * stored
        while await log.get_by_role("button", name="Show older").is_visible():
            await log.press("Home")
        await expect(log.get_by_role("article")).to_have_count(202)
        await expect(log.get_by_text("user 0", exact=True)).to_be_attached()


@in_both_browsers
async def test_chats_are_read_without_the_server(tab: Tab) -> None:
    """The page's own files are kept; what needs the server says that it cannot be reached."""
    tab.allowed = ("Failed to load resource: net::ERR_INTERNET_DISCONNECTED",)
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)
    await tab.page.evaluate("navigator.serviceWorker.ready.then(() => null)")
    await tab.page.reload()  # the worker keeps what it serves
    await expect(answers(tab)).to_contain_text("Paris")
    await tab.page.evaluate(WAIT_UNTIL_KEPT)
    await tab.page.context.set_offline(True)
    await tab.page.reload()

    await expect(answers(tab)).to_contain_text("Paris")
    await expect(tab.page.get_by_role("log").get_by_role("alert")).to_contain_text(
        "The server cannot be reached."
    )
    await tab.page.context.set_offline(False)
