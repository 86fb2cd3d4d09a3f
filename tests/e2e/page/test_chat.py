"""The chat of the page, in Chromium with the demo model."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Route, expect

from tests.support.browser import Tab, in_both_browsers, needs_chromium
from tests.support.chat_page import answers, ask, ask_and_wait, keep_preset, open_chat
from tests.support.rpc import CAPITAL
from tests.support.sdk import WEATHER
from tests.support.services import MODEL

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]

PICTURE = Path(__file__).resolve().parents[3] / "docs/understand/demo-vision.png"


@in_both_browsers
async def test_an_answer_streams_in(tab: Tab) -> None:
    """Its text grows on the screen while the server generates; then its token counts are shown."""
    await open_chat(tab)
    await tab.page.get_by_label("Other fields").fill(json.dumps({"ignore_eos": True, "seed": 1}))
    await ask(tab, "Tell me a story about a fox.")
    first = await answers(tab).last.locator(".markdown").text_content()
    assert first is not None

    await expect(answers(tab).last.locator(".markdown")).not_to_have_text(first)
    await expect(tab.page.get_by_role("log")).to_have_attribute("aria-busy", "true")
    await tab.page.get_by_role("button", name="Stop").click()
    await expect(answers(tab).last).to_contain_text("stopped")


async def test_of_several_choices_the_first_is_shown(tab: Tab) -> None:
    """The tokens of all were one text."""
    await open_chat(tab)
    fields = {"seed": 1, "temperature": 1, "ignore_eos": True, "max_tokens": 30}
    texts = []
    for more in ({}, {"n": 3}):
        await tab.page.get_by_label("Other fields").fill(json.dumps(fields | more))
        await tab.page.get_by_role("button", name="New chat").click()
        await ask_and_wait(tab, "Tell me a story about a fox.")
        texts.append(await answers(tab).last.locator(".markdown").text_content())

    assert texts[0] == texts[1]


async def test_a_message_may_be_sent_before_the_models_are_listed(tab: Tab) -> None:
    """The request waits for the list, since it must name a model."""

    async def answer_late(route: Route) -> None:
        await sent.wait()
        await route.continue_()

    sent = asyncio.Event()
    await tab.page.route("**/v1/models", answer_late)
    await tab.go("chat")
    async with tab.sends("**/v1/chat/completions") as body:
        await ask(tab, CAPITAL)
        await expect(answers(tab)).to_have_count(1)
        sent.set()

    assert body["model"]
    await expect(answers(tab).last.get_by_role("button", name="Regenerate")).to_be_visible()
    await expect(answers(tab).last).to_contain_text("Paris")


@in_both_browsers
async def test_stopping_ends_the_request_and_leaves_the_text(tab: Tab) -> None:
    """Escape in the composer stops too, and the next message can be sent at once."""
    await open_chat(tab)
    await tab.page.get_by_label("Other fields").fill(json.dumps({"ignore_eos": True}))
    await ask(tab, "Tell me a story about a fox.")
    await answers(tab).last.locator(".markdown").wait_for()
    await tab.page.keyboard.press("Escape")

    await expect(answers(tab).last).to_contain_text("stopped")
    assert await answers(tab).last.locator(".markdown").text_content()
    await tab.page.get_by_label("Other fields").fill("")
    await ask_and_wait(tab, CAPITAL)
    assert await answers(tab).count() == 2


async def test_a_message_can_be_edited_and_an_answer_regenerated(tab: Tab) -> None:
    """What came after the message, and the answer, stay as other versions."""
    await open_chat(tab)
    await tab.page.get_by_label("Temperature").fill("0")
    await ask_and_wait(tab, CAPITAL)
    await expect(answers(tab)).to_contain_text("Paris")
    await tab.page.get_by_role("article", name="You").get_by_role("button", name="Edit").click()
    await tab.page.get_by_label("Edit the message").fill("What is the capital of Italy?")
    await tab.page.get_by_role("button", name="Send again").click()

    await expect(answers(tab)).to_contain_text("Rome")
    await expect(tab.page.get_by_role("article", name="You")).to_have_count(1)
    async with tab.sends("**/v1/chat/completions") as body:
        await tab.page.get_by_role("button", name="Regenerate").click()
    await expect(answers(tab)).to_contain_text("Rome")
    assert body["messages"] == [{"role": "user", "content": "What is the capital of Italy?"}]
    await expect(answers(tab).get_by_role("group", name="Versions")).to_contain_text("2 of 2")
    await tab.page.get_by_role("article", name="You").get_by_label("Previous version").click()
    await expect(tab.page.get_by_role("article", name="You")).to_contain_text(CAPITAL)
    await expect(answers(tab)).to_contain_text("Paris")
    await tab.page.get_by_role("article", name="You").get_by_label("Next version").click()
    await expect(answers(tab)).to_contain_text("Rome")


async def test_settings_are_sent_with_the_request(tab: Tab) -> None:
    """Model, sampling and system message, and nothing that was left empty."""
    await open_chat(tab)
    await tab.page.get_by_label("Temperature").fill("")
    await tab.page.get_by_label("System message").fill("Be brief.")
    await tab.page.get_by_label("Max tokens").fill("3")
    await tab.page.get_by_label("Top K").fill("5")
    async with tab.sends("**/v1/chat/completions") as body:
        await ask_and_wait(tab, "Hello!")

    assert body == {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello!"},
        ],
        "max_tokens": 3,
        "top_k": 5,
    }


@in_both_browsers
async def test_a_preset_is_kept_and_chosen(tab: Tab) -> None:
    """A system message under a name, also after a reload."""
    await open_chat(tab)
    await tab.page.get_by_label("System message").fill("Be brief.")
    await keep_preset(tab, "Brief")
    await tab.page.get_by_label("System message").fill("")
    await tab.page.reload()
    await tab.page.get_by_label("Preset").select_option("Brief")

    await expect(tab.page.get_by_label("System message")).to_have_value("Be brief.")
    await tab.page.get_by_role("button", name="Forget").click()
    await expect(tab.page.get_by_role("button", name="Forget")).to_be_disabled()


@in_both_browsers
async def test_an_answer_satisfies_a_schema(tab: Tab) -> None:
    """That of the settings."""
    await open_chat(tab)
    await tab.page.get_by_label("JSON schema").fill('{"enum": ["yes", "no"]}')
    await ask_and_wait(tab, CAPITAL)

    await expect(answers(tab).locator(".markdown")).to_have_text(re.compile(r'^\s*"(yes|no)"\s*$'))


async def test_a_tool_call_is_shown_and_its_output_sent(tab: Tab) -> None:
    """The user enters what the tool returns; the model answers with it."""
    await open_chat(tab)
    await tab.page.get_by_label("Temperature").fill("0")
    await tab.page.get_by_label("Tools", exact=True).fill(json.dumps([WEATHER]))
    await ask_and_wait(tab, "What is the weather in Paris?")
    await expect(tab.page.get_by_role("group", name="Tool call: get_weather")).to_be_visible()
    await expect(tab.page.get_by_label("Arguments of get_weather")).to_contain_text("Paris")
    await tab.page.get_by_label("Output of the tool").fill('{"weather": "sunny"}')
    async with tab.sends("**/v1/chat/completions") as body:
        await tab.page.get_by_role("button", name="Send the output").click()

    await expect(answers(tab)).to_have_count(2)
    await expect(answers(tab).last).to_contain_text("sunny")
    *_, output = body["messages"]
    assert (output["role"], output["content"]) == ("tool", '{"weather": "sunny"}')


@in_both_browsers
async def test_a_picture_can_be_attached(tab: Tab) -> None:
    """The model says what it sees, and the picture is shown with the message."""
    await open_chat(tab)
    await tab.page.get_by_label("Temperature").fill("0")
    await expect(tab.page.get_by_text("reads text, pictures")).to_be_visible()
    await tab.page.get_by_label("Files").set_input_files(PICTURE)
    await expect(tab.page.get_by_role("img", name="demo-vision.png")).to_be_visible()
    await ask_and_wait(tab, "What do you see?")

    await expect(answers(tab).last).to_contain_text("I see a blue heart and a green ring.")


async def test_an_invalid_setting_is_reported_with_its_field(tab: Tab) -> None:
    """JSON that does not parse, and values that the server refuses."""
    await open_chat(tab)
    await tab.page.get_by_label("Other fields").fill("{")
    await ask(tab, "Hello!")
    await expect(tab.page.get_by_role("alert")).to_contain_text("Other fields: not valid JSON")


async def test_presets_of_two_tabs_are_all_kept(tab: Tab) -> None:
    """Keeping one removes none that the other tab has kept meanwhile."""
    await open_chat(tab)
    other = Tab(await tab.page.context.new_page(), tab.url)
    await open_chat(other)
    for each, name in ((other, "Theirs"), (tab, "Ours")):
        await keep_preset(each, name)

    presets = tab.page.get_by_label("Preset").get_by_role("option")
    await expect(presets).to_have_text(["No preset", "Theirs", "Ours"])
    await tab.page.reload()
    await expect(presets).to_have_text(["No preset", "Theirs", "Ours"])
