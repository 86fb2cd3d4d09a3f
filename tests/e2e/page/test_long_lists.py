"""Lists of more than one page, and what goes on after a reload, in Chromium with the demo model."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import FilePayload, Route, expect

from tests.support.browser import Tab, in_both_browsers, needs_chromium
from tests.support.chat_page import answers, ask_and_wait, open_chat
from tests.support.rpc import CAPITAL
from tests.support.sdk import WEATHER
from tests.support.services import MODEL, Corral

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]


PICTURE = Path(__file__).resolve().parents[3] / "docs/understand/demo-vision.png"
COUNT_CHANGES = """() => {
  window.changes = 0;
  new MutationObserver(() => { window.changes++; })
    .observe(document.querySelector("main"), {childList: true, characterData: true, subtree: true});
}"""
"""Counts how often what is shown has changed."""


@pytest_asyncio.fixture(loop_scope="module")
async def api(server: Corral) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client:
        yield client


async def create(api: httpx.AsyncClient, path: str, body: Any = None) -> Any:
    """The object that a POST creates."""
    return (await api.post(f"/v1/{path}", json=body or {})).raise_for_status().json()


@in_both_browsers
async def test_a_thread_opens_at_its_newest_message(tab: Tab, api: httpx.AsyncClient) -> None:
    """Older messages come above it when one scrolls up, and what is read stays in place."""
    messages = [{"role": "user", "content": f"message {number}"} for number in range(130)]
    thread = await create(api, "threads", {"messages": messages[:32]})
    for message in messages[32:]:
        await create(api, f"threads/{thread['id']}/messages", message)
    await tab.go(f"threads/{thread['id']}")
    log = tab.page.get_by_role("log", name="Messages")
    await expect(log.get_by_text("message 129", exact=True)).to_be_in_viewport()
    await expect(log.get_by_role("article")).to_have_count(50)
    await log.evaluate("box => { box.scrollTop = 0; }")

    await expect(log.get_by_role("article")).to_have_count(100)
    await expect(log.get_by_text("message 80", exact=True)).to_be_in_viewport()
    await log.get_by_role("button", name="Show older").press("Enter")
    await expect(log.get_by_role("article").first).to_contain_text("message 0")


async def test_a_long_conversation_opens_at_its_end(tab: Tab, api: httpx.AsyncClient) -> None:
    """Of two thousand items, whose older ones come when one scrolls up."""
    items = [
        {"type": "message", "role": "user", "content": f"item {number}"} for number in range(2000)
    ]
    conversation = await create(api, "conversations", {"items": items[:20]})
    for at in range(20, len(items), 20):
        more = {"items": items[at : at + 20]}
        await create(api, f"conversations/{conversation['id']}/items", more)
    await tab.go(f"conversations/{conversation['id']}")
    log = tab.page.get_by_role("log", name="Items")
    await expect(log.get_by_text("item 1999", exact=True)).to_be_in_viewport()
    await expect(log.get_by_role("article")).to_have_count(50)
    await log.press("Home")
    await expect(log.get_by_role("article")).to_have_count(100)


async def test_all_items_of_a_long_input_can_be_read(tab: Tab, api: httpx.AsyncClient) -> None:
    """Of a stored response: the newest ones first."""
    items = [{"role": "user", "content": f"item {number}"} for number in range(120)]
    body = {"model": MODEL, "input": items, "max_output_tokens": 1}
    response = await create(api, "responses", body)
    await tab.go(f"responses/{response['id']}")
    log = tab.page.get_by_role("log", name="Input")
    await expect(log.get_by_text("item 119", exact=True)).to_be_in_viewport()
    while await log.get_by_role("button", name="Show older").is_visible():
        await log.press("Home")

    await expect(log.get_by_role("article")).to_have_count(120)


async def test_all_runs_of_a_thread_can_be_listed(tab: Tab, api: httpx.AsyncClient) -> None:
    assistant = await create(api, "assistants", {"model": MODEL})
    thread = await create(api, "threads", {"messages": [{"role": "user", "content": CAPITAL}]})
    path = f"threads/{thread['id']}"
    body = {"assistant_id": assistant["id"], "temperature": 0, "stream": True}
    for _ in range(21):
        (await api.post(f"/v1/{path}/runs", json=body)).raise_for_status()
    await tab.go(path)
    rows = tab.page.get_by_role("region", name="Runs").get_by_role("row")
    await expect(rows).to_have_count(21)  # with that of the titles
    await tab.page.get_by_role("button", name="Show more").click()

    await expect(rows).to_have_count(22)


async def test_a_reload_of_a_list_keeps_its_pages(tab: Tab, api: httpx.AsyncClient) -> None:
    """As after a deletion in the second page."""
    for number in range(60):
        await create(api, "conversations", {"metadata": {"title": f"conversation {number}"}})
    await tab.go("conversations")
    rows = tab.page.get_by_role("region", name="Conversations").get_by_role("row")
    await expect(rows).to_have_count(51)
    await tab.page.get_by_role("button", name="Show more").click()
    await expect(rows.nth(60)).to_be_attached()
    count = await rows.count()
    tab.page.once("dialog", lambda dialog: dialog.accept())
    row = rows.filter(has=tab.page.get_by_role("link", name="conversation 1", exact=True))
    await row.get_by_role("button", name="Delete").click()

    await expect(row).to_have_count(0)
    await expect(rows).to_have_count(count - 1)


@in_both_browsers
async def test_a_run_that_waits_goes_on_after_a_reload(tab: Tab, api: httpx.AsyncClient) -> None:
    """Its calls ask for outputs, and it can be cancelled."""
    assistant = await create(api, "assistants", {"model": MODEL, "tools": [WEATHER]})
    thread = await create(
        api,
        "threads",
        {"messages": [{"role": "user", "content": "What is the weather in Paris?"}]},
    )
    path = f"threads/{thread['id']}"
    await create(api, f"{path}/runs", {"assistant_id": assistant["id"], "temperature": 0})
    await tab.go(path)
    outputs = tab.page.get_by_role("form", name="Outputs of tools")
    await expect(outputs).to_be_visible()
    await tab.page.reload()
    run = tab.page.get_by_role("region", name="Current run")
    await expect(run.get_by_role("button", name="Cancel")).to_be_visible()
    await outputs.get_by_label("Output of get_weather").fill('{"weather": "sunny"}')
    await outputs.get_by_role("button", name="Send the outputs").click()

    await expect(run.get_by_text("completed").first).to_be_visible()
    await expect(tab.page.get_by_role("article", name="Model")).to_contain_text("sunny")
    await expect(tab.page.get_by_role("article", name="Model")).to_have_count(1)


async def test_a_run_goes_on_in_all_tabs_that_show_it(tab: Tab, api: httpx.AsyncClient) -> None:
    """When one of them sends the outputs, and then starts another run."""
    assistant = await create(api, "assistants", {"model": MODEL, "tools": [WEATHER]})
    question = {"role": "user", "content": "What is the weather in Paris?"}
    thread = await create(api, "threads", {"messages": [question]})
    path = f"threads/{thread['id']}"
    await create(api, f"{path}/runs", {"assistant_id": assistant["id"], "temperature": 0})
    other = Tab(await tab.page.context.new_page(), tab.url)
    for each in (tab, other):
        await each.go(path)
        await expect(each.page.get_by_role("form", name="Outputs of tools")).to_be_visible()
    outputs = other.page.get_by_role("form", name="Outputs of tools")
    await outputs.get_by_label("Output of get_weather").fill('{"weather": "sunny"}')
    await outputs.get_by_role("button", name="Send the outputs").click()
    models = tab.page.get_by_role("article", name="Model")
    await expect(models).to_contain_text("sunny")
    await expect(tab.page.get_by_role("form", name="Outputs of tools")).to_have_count(0)
    form = other.page.get_by_role("form", name="Run")
    await form.get_by_label("Assistant").select_option(assistant["id"])
    await form.get_by_label("Message").fill("Hello!")
    await form.get_by_role("button", name="Add and run").click()

    await expect(models).to_have_count(2)
    await expect(tab.page.get_by_text("Hello!", exact=True)).to_be_visible()
    run = tab.page.get_by_role("region", name="Current run")
    await expect(run.get_by_role("listitem")).to_have_count(1)


async def test_a_run_that_generates_is_followed_after_a_reload(
    tab: Tab, api: httpx.AsyncClient
) -> None:
    """Its text goes on from what had come, once."""
    assistant = await create(api, "assistants", {"model": MODEL})
    thread = await create(api, "threads", {"messages": [{"role": "user", "content": "A story!"}]})
    path = f"threads/{thread['id']}"
    body = {"assistant_id": assistant["id"], "max_completion_tokens": 2000, "temperature": 1.5}
    run = await create(api, f"{path}/runs", body)
    await tab.go(path)
    answer = tab.page.get_by_role("article", name="Model")
    await expect(answer.locator(".markdown")).not_to_be_empty()
    await tab.page.reload()
    await expect(answer.locator(".markdown")).not_to_be_empty()

    await expect(answer).to_have_count(1)
    await api.post(f"/v1/{path}/runs/{run['id']}/cancel")
    await expect(tab.page.get_by_role("log")).to_have_attribute("aria-busy", "false")


@in_both_browsers
async def test_a_background_response_streams_into_its_view(
    tab: Tab, api: httpx.AsyncClient
) -> None:
    """Also after a reload, from its first event."""
    body = {
        "model": MODEL,
        "input": "Tell me a story about a fox.",
        "background": True,
        "temperature": 1.5,
        "max_output_tokens": 2000,
    }
    response = await create(api, "responses", body)
    await tab.go(f"responses/{response['id']}")
    output = tab.page.get_by_role("group", name="Output").locator(".markdown")
    await expect(output).not_to_be_empty()
    await tab.page.reload()
    await expect(output).not_to_be_empty()
    await api.post(f"/v1/responses/{response['id']}/cancel")

    await expect(tab.page.get_by_role("button", name="Cancel")).to_have_count(0)
    await expect(output).to_have_count(1)


async def test_an_answer_that_is_no_json_is_said(tab: Tab) -> None:
    """As of a proxy that asks for a login, or of a network that is gone."""

    async def show_login(route: Route) -> None:
        await route.fulfill(content_type="text/html", body="<h1>Log in</h1>")

    await tab.page.route("**/v1/files*", show_login)
    await tab.go("files")
    await expect(tab.page.get_by_role("alert")).to_contain_text("is a proxy in between?")
    await tab.page.unroute("**/v1/files*")
    tab.allowed = ("Failed to load resource: net::ERR",)
    await tab.page.route("**/v1/threads*", lambda route: route.abort())
    await tab.go("threads")
    await expect(tab.page.get_by_role("alert")).to_contain_text("The server cannot be reached.")


async def test_a_chat_is_stored_whole_and_comes_back(tab: Tab, api: httpx.AsyncClient) -> None:
    """With reasoning, calls and their outputs, and pictures."""
    picture = f"data:image/png;base64,{base64.b64encode(PICTURE.read_bytes()).decode()}"
    question = [
        {"type": "input_image", "image_url": picture, "detail": "auto"},
        {"type": "input_text", "text": "What is the weather in Paris?"},
    ]
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": question},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I look outside."}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "message", "role": "assistant", "content": "It is sunny."},
    ]
    conversation = await create(api, "conversations", {"items": items})
    await tab.go(f"conversations/{conversation['id']}")
    await tab.page.get_by_role("button", name="Open a copy in the chat").click()
    await expect(tab.page.get_by_role("group", name="Tool call: get_weather")).to_be_visible()
    await tab.page.get_by_role("button", name="Store as a conversation").click()
    await expect(tab.page.get_by_role("log", name="Items")).to_be_visible()
    await expect(tab.page.get_by_role("img", name="Attached picture")).to_be_visible()
    copy = tab.page.url.rpartition("/")[2]
    path = f"/v1/conversations/{copy}/items?order=asc&include=message.input_image.image_url"
    stored = (await api.get(path)).json()["data"]

    assert copy != conversation["id"]
    assert [item["type"] for item in stored] == [item["type"] for item in items]
    assert json.dumps(stored).count("sunny") == 2
    assert stored[0]["content"][0]["image_url"] == picture
    assert stored[1]["summary"][0]["text"] == "I look outside."


async def test_the_code_of_an_answer_is_copied(tab: Tab, api: httpx.AsyncClient) -> None:
    """Without the text around it; what is no fence of code stays Markdown."""
    text = "Try *this*:\n\n```python\nprint('<b>')\n```\n\n[a link][1]\n\n[1]: http://example.com"
    items = [{"type": "message", "role": "assistant", "content": text}]
    conversation = await create(api, "conversations", {"items": items})
    await tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await tab.go(f"conversations/{conversation['id']}")
    await tab.page.get_by_role("button", name="Copy the code").click()
    await expect(tab.page.get_by_text("Copied.")).to_be_visible()

    assert await tab.page.evaluate("navigator.clipboard.readText()") == "print('<b>')"
    await expect(tab.page.get_by_role("link", name="a link")).to_have_attribute(
        "href", "http://example.com"
    )
    await expect(tab.page.locator("em")).to_have_text("this")


async def test_dollars_in_a_sentence_do_not_break_its_line(
    tab: Tab, api: httpx.AsyncClient
) -> None:
    """A formula between two of them on lines of their own does."""
    text = "It costs $$ a lot,\nand $$ more.\n$$\nx\n$$\nafter"
    items = [{"type": "message", "role": "assistant", "content": text}]
    conversation = await create(api, "conversations", {"items": items})
    await tab.go(f"conversations/{conversation['id']}")
    await expect(tab.page.locator("math")).to_have_text("x")

    assert await tab.page.locator(".markdown p").all_inner_texts() == [
        "It costs $$ a lot,\nand $$ more.",
        "after",
    ]


@pytest.mark.parametrize("text", ["{}", "[1]", "[null]"])
async def test_a_file_that_is_no_list_of_items_is_refused(tab: Tab, text: str) -> None:
    await tab.go("conversations")
    await tab.page.get_by_text("New conversation").click()
    await tab.page.get_by_label("Items").set_input_files(json_file(text))
    await tab.page.get_by_role("button", name="Create").click()

    await expect(tab.page.get_by_role("alert")).to_have_text("Items: not a JSON array of objects")


async def test_a_thread_begins_with_messages_as_the_api_takes_them(tab: Tab) -> None:
    """What it does not take is refused in its words."""
    tab.allowed = ("Failed to load resource",)
    await tab.go("threads")
    form = tab.page.get_by_role("form", name="New thread")
    await form.get_by_label("Messages").set_input_files(json_file('[{"role": "user"}]'))
    await form.get_by_role("button", name="New thread").click()
    await expect(form.get_by_role("alert")).to_contain_text("messages[0].content")
    await form.get_by_label("Messages").set_input_files(
        json_file('[{"role": "user", "content": "by hand"}]')
    )
    await form.get_by_role("button", name="New thread").click()

    await expect(tab.page.get_by_role("article", name="You")).to_contain_text("by hand")


def json_file(text: str) -> FilePayload:
    return FilePayload(name="a.json", mimeType="application/json", buffer=text.encode())


async def test_code_is_highlighted_when_its_block_has_ended(tab: Tab) -> None:
    """A long one is plain while it grows, since each piece would make all of it again."""
    code = "x = 1\n" * 1000

    def stream(text: str) -> str:
        chunk = {"object": "chat.completion.chunk", "choices": [{"delta": {"content": text}}]}
        return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"

    async def answer(route: Route) -> None:
        body = stream(f"```python\n{code}{ends.pop(0)}")
        await route.fulfill(content_type="text/event-stream", body=body)

    ends = ["", "```", ""]
    await tab.page.route("**/v1/chat/completions", answer)
    await open_chat(tab)
    await ask_and_wait(tab, "Grow.")
    await ask_and_wait(tab, "End.")
    await expect(answers(tab).last.locator(".hljs-number").first).to_be_attached()
    await expect(answers(tab).first.locator(".hljs-number")).to_have_count(0)
    code = "x = 1\n"
    await ask_and_wait(tab, "Short.")
    await expect(answers(tab).last.locator(".hljs-number")).to_have_count(1)


@in_both_browsers
async def test_a_stream_is_rendered_once_a_frame(tab: Tab, api: httpx.AsyncClient) -> None:
    """However fast its events come, also beside a long thread."""
    assistant = await create(api, "assistants", {"model": MODEL, "name": "Fast"})
    messages = [{"role": "user", "content": f"message {number}"} for number in range(32)]
    thread = await create(api, "threads", {"messages": messages})
    delta = {"id": "m", "delta": {"content": [{"type": "text", "text": {"value": "word "}}]}}
    event = f"event: thread.message.delta\ndata: {json.dumps(delta)}\n\n"
    stream = f"{event * 500}event: done\ndata: [DONE]\n\n"
    await tab.go(f"threads/{thread['id']}")
    form = tab.page.get_by_role("form", name="Run")
    await form.get_by_label("Assistant").select_option(assistant["id"])
    await tab.page.route(
        "**/runs",
        lambda route: route.fulfill(content_type="text/event-stream", body=stream),
        times=1,
    )
    await tab.page.evaluate(COUNT_CHANGES)
    await form.get_by_role("button", name="Add and run").click()
    await expect(form.get_by_role("button", name="Add and run")).to_be_enabled()

    assert 0 < await tab.page.evaluate("window.changes") < 50
