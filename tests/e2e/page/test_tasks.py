"""Tasks of those who know llama-server's own page, at 400 px by keyboard alone, in Chromium.

They are the table in docs/use/page.md.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Dialog, FilePayload, Locator, Route, expect

from tests.support.browser import NARROW, Tab, needs_chromium, open_tab
from tests.support.chat_page import answers
from tests.support.documents import pdf
from tests.support.keyboard import choose, pick, press, reach, write
from tests.support.rpc import CAPITAL
from tests.support.services import MODEL, Corral

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]

ITALY = "What is the capital of Italy?"
STORY = "Tell me a story about a fox."
ENDLESS = json.dumps({"ignore_eos": True})
PICTURE = Path(__file__).resolve().parents[3] / "docs/understand/demo-vision.png"
RICH = (
    "# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nIt is $x^2$.\n\n```python\nprint('fox')\n```\n"
)


@pytest_asyncio.fixture(loop_scope="module")
async def phone(browser: Browser, server: Corral) -> AsyncIterator[Tab]:
    """The chat in a narrow tab, whose answers are the same each time."""
    async with open_tab(browser, server.url, width=NARROW) as tab:
        settings = json.dumps({"model": MODEL, "temperature": "0"})
        await tab.page.add_init_script(f"localStorage['corral.chat.settings'] ??= '{settings}'")
        await tab.go("chat")
        await tab.page.get_by_text(f"Ask {MODEL} something.").wait_for()
        yield tab
        assert await tab.overflow() == 0


def button(tab: Tab, name: str) -> Locator:
    return tab.page.get_by_role("button", name=name, exact=True)


def questions(tab: Tab) -> Locator:
    return tab.page.get_by_role("article", name="You")


def summary(tab: Tab, name: str) -> Locator:
    return tab.page.locator("summary", has_text=re.compile(f"^{name}$"))


async def send(tab: Tab, text: str) -> None:
    await write(tab.page, tab.page.get_by_role("textbox", name="Message", exact=True), text)
    await tab.page.keyboard.press("Enter")


async def ask(tab: Tab, text: str) -> None:
    """Send a message, and wait until the answer is whole."""
    await send(tab, text)
    await expect(answers(tab).last.get_by_role("button", name="Regenerate")).to_be_visible()


async def set_setting(tab: Tab, label: str, value: str) -> None:
    """Fill one field of the settings, and fold them again."""
    await press(tab.page, summary(tab, "Settings"))
    await write(tab.page, tab.page.get_by_label(label, exact=True), value)
    await press(tab.page, summary(tab, "Settings"))


async def script_answer(tab: Tab, *texts: str, **delta: Any) -> None:
    """Answer the next requests with these texts, each of which ended at the token limit."""
    left = list(texts)

    async def answer(route: Route) -> None:
        choice = {"delta": {"content": left.pop(0), **delta}, "finish_reason": "length"}
        chunk = {"object": "chat.completion.chunk", "choices": [choice]}
        body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        await route.fulfill(content_type="text/event-stream", body=body)

    await tab.page.route("**/v1/chat/completions", answer, times=len(texts))


def accept_next_dialog(tab: Tab) -> "asyncio.Future[str]":
    """Accept it; the result is what it asks."""
    asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def accept(dialog: Dialog) -> None:
        asked.set_result(dialog.message)
        await dialog.accept()

    tab.page.once("dialog", accept)
    return asked


async def test_task_1_ask_and_see_what_it_cost(phone: Tab) -> None:
    await ask(phone, CAPITAL)

    await expect(answers(phone)).to_contain_text("Paris")
    await expect(answers(phone)).to_contain_text(re.compile(r"\d+ \+ \d+ tokens · .* tokens/s"))


async def test_task_2_stop_an_answer(phone: Tab) -> None:
    await set_setting(phone, "Other fields", ENDLESS)
    await send(phone, STORY)
    await answers(phone).locator(".markdown").wait_for()
    await phone.page.keyboard.press("Escape")

    await expect(answers(phone)).to_contain_text("stopped")


async def test_task_3_read_the_reasoning(phone: Tab) -> None:
    await script_answer(phone, "42", reasoning_content="Six times seven.")
    await ask(phone, "What is it?")
    thought = answers(phone).get_by_text("Six times seven.")
    await expect(thought).to_be_hidden()
    await press(phone.page, summary(phone, "Reasoning"))

    await expect(thought).to_be_visible()


async def test_task_4_read_tables_formulas_and_code(phone: Tab) -> None:
    await script_answer(phone, RICH)
    await ask(phone, "Show all.")

    await expect(answers(phone).get_by_role("table")).to_be_visible()
    await expect(answers(phone).locator("math")).to_be_visible()
    await expect(answers(phone).locator(".hljs-string")).to_have_text("'fox'")


async def test_task_5_copy_an_answer_and_its_code(phone: Tab) -> None:
    await phone.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await script_answer(phone, RICH)
    await ask(phone, "Show all.")
    copied = []
    for name in ("Copy", "Copy the code"):
        await press(phone.page, answers(phone).get_by_role("button", name=name, exact=True))
        await expect(phone.page.get_by_text("Copied.")).to_be_visible()
        copied.append(await phone.page.evaluate("navigator.clipboard.readText()"))
        await press(phone.page, button(phone, "Dismiss the message"))

    assert copied == [RICH, "print('fox')"]


async def test_task_6_edit_a_question_and_go_back(phone: Tab) -> None:
    await ask(phone, CAPITAL)
    await press(phone.page, questions(phone).get_by_role("button", name="Edit"))
    await write(phone.page, phone.page.get_by_label("Edit the message"), ITALY)
    await press(phone.page, button(phone, "Send again"))
    await expect(answers(phone)).to_contain_text("Rome")
    await press(phone.page, questions(phone).get_by_label("Previous version"))

    await expect(answers(phone)).to_contain_text("Paris")
    await expect(questions(phone)).to_contain_text(CAPITAL)


async def test_task_7_regenerate_with_another_model(phone: Tab) -> None:
    await ask(phone, CAPITAL)
    await press(phone.page, summary(phone, "Settings"))
    models = phone.page.get_by_role("combobox", name="Model")
    names = await models.get_by_role("option").all_text_contents()
    (other,) = {*names} - {MODEL}
    await choose(phone.page, models, other)
    await press(phone.page, summary(phone, "Settings"))
    async with phone.sends("**/v1/chat/completions") as body:
        await press(phone.page, answers(phone).get_by_role("button", name="Regenerate"))

    await expect(answers(phone).get_by_role("group", name="Versions")).to_contain_text("2 of 2")
    assert body["model"] == other


async def test_task_8_edit_an_answer(phone: Tab) -> None:
    """The next request has the new text; the old one is the first version."""
    await ask(phone, CAPITAL)
    await press(phone.page, answers(phone).get_by_role("button", name="Edit"))
    await write(phone.page, phone.page.get_by_label("Edit the message"), "It is Lyon.")
    await press(phone.page, button(phone, "Save"))
    await expect(answers(phone).get_by_role("group", name="Versions")).to_contain_text("2 of 2")
    async with phone.sends("**/v1/chat/completions") as body:
        await ask(phone, ITALY)
    await phone.page.reload()

    assert [message["content"] for message in body["messages"]] == [CAPITAL, "It is Lyon.", ITALY]
    await expect(answers(phone).first).to_contain_text("It is Lyon.")


async def test_task_9_continue_an_answer(phone: Tab) -> None:
    """One that ended at the token limit goes on behind its text."""
    await script_answer(phone, "The capital of France")
    await ask(phone, CAPITAL)
    async with phone.sends("**/v1/chat/completions") as body:
        await press(phone.page, button(phone, "Continue"))

    await expect(answers(phone)).to_contain_text("The capital of France is Paris.")
    await expect(answers(phone)).to_have_count(1)
    await expect(button(phone, "Continue")).to_have_count(0)
    last = {"role": "assistant", "content": "The capital of France"}
    assert body["messages"] == [{"role": "user", "content": CAPITAL}, last]


async def test_task_10_delete_a_message(phone: Tab) -> None:
    """With all after it, also from what the browser keeps; it is asked how many these are."""
    await ask(phone, CAPITAL)
    await ask(phone, ITALY)
    asked = accept_next_dialog(phone)
    await press(phone.page, questions(phone).last.get_by_role("button", name="Delete"))
    assert await asked == "Delete this message and 1 after it?"
    await expect(questions(phone)).to_have_text(re.compile(CAPITAL[:-1]))
    await phone.page.reload()

    await expect(answers(phone)).to_contain_text("Paris")
    await expect(questions(phone)).to_have_count(1)


async def test_task_11_show_a_picture(phone: Tab) -> None:
    file = FilePayload(name="heart.png", mimeType="image/png", buffer=PICTURE.read_bytes())
    await pick(phone.page, button(phone, "Attach"), [file])
    await expect(phone.page.get_by_role("img", name="heart.png")).to_be_visible()
    await ask(phone, "What do you see?")

    await expect(answers(phone)).to_contain_text("I see a blue heart and a green ring.")


async def test_task_12_show_a_pdf(phone: Tab) -> None:
    """The server reads its text."""
    file = FilePayload(name="paper.pdf", mimeType="application/pdf", buffer=pdf(CAPITAL))
    await pick(phone.page, button(phone, "Attach"), [file])
    await ask(phone, "Answer it.")

    await expect(answers(phone).get_by_role("alert")).to_have_count(0)
    await expect(questions(phone)).to_contain_text("paper.pdf")


async def test_task_13_record_a_question(phone: Tab) -> None:
    async def let_models_hear(route: Route) -> None:
        models: Any = await (await route.fetch()).json()
        for model in models["data"]:
            model["input_modalities"].append("audio")
        await route.fulfill(json=models)

    await phone.page.context.grant_permissions(["microphone"])
    await phone.page.route("**/v1/models", let_models_hear)
    await phone.page.reload()
    await script_answer(phone, "A beep.")
    await press(phone.page, button(phone, "Record"))
    stop = phone.page.get_by_role("button", name="Stop recording")
    await expect(stop).to_be_focused()
    await phone.page.keyboard.press("Enter")
    await expect(phone.page.get_by_label("recording.wav", exact=True)).to_be_visible()
    async with phone.sends("**/v1/chat/completions") as body:
        await ask(phone, "What do you hear?")

    assert body["messages"][0]["content"][0]["type"] == "input_audio"


async def test_task_14_attach_source_code_and_remove_it(phone: Tab) -> None:
    names = ("one.py", "two.py")
    files = [FilePayload(name=name, mimeType="text/x-python", buffer=b"x = 1") for name in names]
    await pick(phone.page, button(phone, "Attach"), files)
    await press(phone.page, button(phone, "Remove one.py"))
    async with phone.sends("**/v1/chat/completions") as body:
        await ask(phone, "What is x?")

    *sent, _ = body["messages"][0]["content"]
    assert [part["file"]["filename"] for part in sent] == ["two.py"]


async def test_task_15_paste_a_long_text(phone: Tab) -> None:
    """It becomes a file, so that the question beside it is seen."""
    text = "A long text. " * 500
    await phone.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await phone.page.evaluate("text => navigator.clipboard.writeText(text)", text)
    box = phone.page.get_by_role("textbox", name="Message", exact=True)
    await reach(phone.page, box)
    await phone.page.keyboard.press("Control+V")

    await expect(phone.page.get_by_role("list", name="Attachments")).to_contain_text("pasted.txt")
    await expect(box).to_have_value("")


async def test_task_16_ask_in_another_chat_meanwhile(phone: Tab) -> None:
    """Both answers arrive; going back shows the first one, which still grows."""
    await set_setting(phone, "Other fields", ENDLESS)
    await send(phone, STORY)
    await answers(phone).locator(".markdown").wait_for()
    await phone.page.keyboard.press("Control+Shift+O")
    await expect(answers(phone)).to_have_count(0)
    await set_setting(phone, "Other fields", "")
    await ask(phone, CAPITAL)
    await expect(answers(phone)).to_contain_text("Paris")
    await press(phone.page, summary(phone, "Chats"))
    chats = phone.page.get_by_role("list", name="Chats")
    await expect(chats.get_by_role("img", name="Generating")).to_have_count(1)
    await press(phone.page, chats.get_by_role("link", name=STORY))
    text = answers(phone).locator(".markdown")
    before = await text.text_content()
    await expect(text).not_to_have_text(before or "")
    await phone.page.keyboard.press("Escape")

    await expect(answers(phone)).to_contain_text("stopped")


async def test_task_17_find_a_chat(phone: Tab) -> None:
    """By a word of an answer."""
    await ask(phone, CAPITAL)
    await phone.page.keyboard.press("Control+Shift+O")
    await ask(phone, ITALY)
    await phone.page.keyboard.press("Control+K")
    await expect(phone.page.get_by_label("Search", exact=True)).to_be_focused()
    await phone.page.keyboard.insert_text("paris")
    chats = phone.page.get_by_role("list", name="Chats")
    await expect(chats.get_by_role("link")).to_have_text([CAPITAL])
    await press(phone.page, chats.get_by_role("link"))

    await expect(answers(phone)).to_contain_text("Paris")


async def test_task_18_rename_and_pin_a_chat(phone: Tab) -> None:
    await ask(phone, CAPITAL)
    await press(phone.page, summary(phone, "Chats"))
    chats = phone.page.get_by_role("list", name="Chats")
    await press(phone.page, chats.get_by_role("button", name="Rename"))
    await write(phone.page, phone.page.get_by_label("Name", exact=True), "France")
    await phone.page.keyboard.press("Enter")
    await press(phone.page, chats.get_by_role("button", name="Pin"))

    await expect(chats.get_by_role("link")).to_have_text("★ France")


async def test_task_19_delete_a_chat(phone: Tab) -> None:
    await ask(phone, CAPITAL)
    await press(phone.page, summary(phone, "Chats"))
    asked = accept_next_dialog(phone)
    await press(phone.page, phone.page.locator(".chats").get_by_role("button", name="Delete"))
    assert await asked == f'Delete the chat "{CAPITAL}" with all its messages?'

    await expect(answers(phone)).to_have_count(0)


async def test_task_20_save_a_chat_and_open_it_again(phone: Tab, tmp_path: Path) -> None:
    await ask(phone, CAPITAL)
    await press(phone.page, summary(phone, "Chats"))
    async with phone.page.expect_download() as saved:
        await press(phone.page, button(phone, "Save as JSON"))
    await (await saved.value).save_as(tmp_path / "chat.json")
    accept_next_dialog(phone)
    await press(phone.page, phone.page.locator(".chats").get_by_role("button", name="Delete"))
    await expect(answers(phone)).to_have_count(0)
    text = (tmp_path / "chat.json").read_bytes()
    await press(phone.page, summary(phone, "Chats"))
    file = FilePayload(name="France.json", mimeType="application/json", buffer=text)
    await pick(phone.page, button(phone, "Open a file"), [file])

    await expect(questions(phone)).to_contain_text(CAPITAL)
    await expect(answers(phone)).to_contain_text("Paris")


async def test_task_21_set_how_the_model_answers(phone: Tab) -> None:
    """System message and sampling, and back to what they are at first."""
    for label, value in (("System message", "Be brief."), ("Top K", "5"), ("Max tokens", "3")):
        await set_setting(phone, label, value)
    async with phone.sends("**/v1/chat/completions") as body:
        await ask(phone, CAPITAL)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["top_k"], body["max_tokens"], body["temperature"]) == (5, 3, 0)
    await press(phone.page, summary(phone, "Settings"))
    await press(phone.page, button(phone, "Reset the settings"))

    await expect(phone.page.get_by_label("System message")).to_have_value("")
    await expect(phone.page.get_by_label("Temperature")).to_have_value("")


async def test_task_22_get_json_that_satisfies_a_schema(phone: Tab) -> None:
    await set_setting(phone, "JSON schema", '{"enum": ["yes", "no"]}')
    await ask(phone, CAPITAL)

    await expect(answers(phone).locator(".markdown")).to_have_text(re.compile('^\\s*"(yes|no)"'))


async def test_task_23_approve_the_call_of_a_tool(phone: Tab) -> None:
    """Of an MCP server; the approval is in the next request."""
    item = {"type": "mcp_approval_request", "id": "a", "server_label": "shop", "name": "order"}
    events = (
        {"type": "response.output_item.done", "item": item | {"arguments": "{}"}},
        {"type": "response.completed", "response": {}},
    )
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    servers = {"data": [{"id": "shop", "object": "mcp_server"}]}
    page = phone.page
    await page.route("**/mcp_servers", lambda route: route.fulfill(json=servers))
    await page.route(
        "**/v1/responses",
        lambda route: route.fulfill(content_type="text/event-stream", body=body),
    )
    await press(page, summary(phone, "Settings"))
    await press(page, summary(phone, "Tools of the server"))
    await press(page, page.get_by_label("shop", exact=True), "Space")
    await press(page, summary(phone, "Settings"))
    await ask(phone, "Order tea.")
    async with phone.sends("**/v1/responses") as sent:
        await press(page, button(phone, "Approve"))

    assert sent["input"][-1]["approve"] is True


async def test_task_24_see_the_models_and_what_they_need(phone: Tab) -> None:
    page = phone.page
    await press(page, button(phone, "Menu"))
    await press(page, page.get_by_role("link", name="Models", exact=True))
    row = page.get_by_role("row").filter(has=page.get_by_text(MODEL, exact=True))
    await expect(row).to_contain_text("ready")
    await expect(row.get_by_role("button", name="Unload")).to_be_visible()
    await press(page, button(phone, f"Explain {MODEL}"))

    await expect(page.get_by_role("region", name=f"Explanation of {MODEL}")).to_contain_text(
        "context tokens"
    )


@pytest.mark.parametrize(("scheme", "colour"), [("dark", "16, 21, 27"), ("light", "246, 247, 249")])
async def test_task_25_choose_light_or_dark(phone: Tab, scheme: str, colour: str) -> None:
    """Whatever the system has, also after a reload."""
    await press(phone.page, button(phone, "Menu"))
    await choose(phone.page, phone.page.get_by_label("Colours"), scheme)
    await expect(phone.page.locator("body")).to_have_css("background-color", f"rgb({colour})")
    await phone.page.reload()

    await expect(phone.page.locator("body")).to_have_css("background-color", f"rgb({colour})")
