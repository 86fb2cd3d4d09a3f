"""What happens to a chat of the page while its answer streams, in Chromium with the demo model."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import expect

from tests.support.browser import Tab, needs_chromium
from tests.support.chat_page import READ_STORED, answers, ask, ask_and_wait, open_chat
from tests.support.rpc import CAPITAL

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]

STORY = "Tell me a story about a fox."


async def stream_story(tab: Tab) -> None:
    """Ask for an answer that does not end, and wait for its first text."""
    await tab.page.get_by_label("Other fields").fill(json.dumps({"ignore_eos": True}))
    await ask(tab, STORY)
    await answers(tab).last.locator(".markdown").wait_for()


@asynccontextmanager
async def second_tab(tab: Tab) -> AsyncIterator[Tab]:
    """Another tab of the same browser, which shows the newest chat."""
    other = Tab(await tab.page.context.new_page(), tab.url)
    await open_chat(other)
    await other.page.get_by_role("list", name="Chats").get_by_role("link").first.click()
    yield other
    await other.page.close()


async def wait_for_growth(tab: Tab) -> None:
    """Wait until the running answer is longer than now."""
    text = answers(tab).last.locator(".markdown")
    before = await text.text_content()
    assert before is not None
    await expect(text).not_to_have_text(before)


@pytest.mark.parametrize("place", ["this tab", "another tab"])
async def test_a_chat_that_is_deleted_while_it_streams_stays_deleted(tab: Tab, place: str) -> None:
    """The answer ends, and nothing of it is kept."""
    await open_chat(tab)
    await stream_story(tab)
    async with second_tab(tab) as other:
        deleting = tab if place == "this tab" else other
        deleting.page.once("dialog", lambda dialog: dialog.accept())
        await deleting.page.locator(".chats").get_by_role("button", name="Delete").click()
        await expect(answers(tab)).to_have_count(0)
        await expect(tab.page.get_by_role("log")).to_have_attribute("aria-busy", "false")
        await expect(answers(other)).to_have_count(0)

        assert await tab.page.evaluate(READ_STORED, "chats") == []
        assert await tab.page.evaluate(READ_STORED, "messages") == []


async def test_a_question_that_is_deleted_while_it_is_answered_stays_deleted(tab: Tab) -> None:
    """The answer ends, and nothing of it is kept."""
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)
    await stream_story(tab)
    tab.page.once("dialog", lambda dialog: dialog.accept())
    question = tab.page.get_by_role("article", name="You").last
    await question.get_by_role("button", name="Delete").click()
    await expect(answers(tab)).to_have_count(1)
    await expect(tab.page.get_by_role("log")).to_have_attribute("aria-busy", "false")
    async with second_tab(tab) as other:
        await expect(answers(other)).to_contain_text("Paris")

    assert len(await tab.page.evaluate(READ_STORED, "messages")) == 2


async def test_a_chat_is_renamed_while_it_streams(tab: Tab) -> None:
    """What is typed survives the news of the other tab; the name stays when it ends."""
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)
    await tab.page.get_by_role("button", name="New chat").click()
    await stream_story(tab)
    async with second_tab(tab) as other:
        await other.page.get_by_role("button", name="Rename").first.click()
        name = other.page.get_by_label("Name", exact=True)
        await name.fill("A fo")
        await wait_for_growth(other)
        await wait_for_growth(other)
        await name.press("End")
        await name.press_sequentially("x")
        await name.press("Enter")
        await expect(tab.page.get_by_role("link", name="A fox", exact=True)).to_be_visible()
    await wait_for_growth(tab)
    await tab.page.get_by_role("link", name=CAPITAL).click()
    await expect(answers(tab)).to_contain_text("Paris")
    stored = await tab.page.evaluate(READ_STORED, "chats")

    assert sorted(chat["title"] for chat in stored) == ["A fox", CAPITAL]


async def test_an_output_that_is_typed_survives_the_news_of_another_tab(tab: Tab) -> None:
    """It is stored only when it is sent."""
    call = {"index": 0, "id": "call_1", "function": {"name": "look", "arguments": "{}"}}
    chunk = {"object": "chat.completion.chunk", "choices": [{"delta": {"tool_calls": [call]}}]}
    stream = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    await tab.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=stream),
    )
    await open_chat(tab)
    await ask(tab, STORY)
    output = answers(tab).get_by_label("Output of the tool")
    await output.fill("A fox sleeps.")
    async with second_tab(tab) as other:
        await other.page.get_by_role("button", name="Pin", exact=True).click()
        await expect(tab.page.get_by_role("link", name=f"★ {STORY}")).to_be_visible()

    await expect(output).to_have_value("A fox sleeps.")


async def test_an_answer_goes_on_while_another_view_is_shown(tab: Tab) -> None:
    """Going back to the address of its chat does not stop it."""
    await open_chat(tab)
    await stream_story(tab)
    await tab.page.get_by_role("link", name=STORY).click()
    await tab.go("files")
    await tab.page.get_by_role("heading", name="Files").wait_for()
    await tab.page.go_back()
    await wait_for_growth(tab)

    await expect(tab.page.get_by_role("log")).to_have_attribute("aria-busy", "true")
    await tab.page.get_by_role("button", name="Stop").click()


async def test_the_chat_that_was_chosen_last_is_shown(tab: Tab) -> None:
    """Also when two are chosen at once."""
    await open_chat(tab)
    for question in (CAPITAL, "Hello!"):
        await ask_and_wait(tab, question)
        await tab.page.get_by_role("button", name="New chat").click()
    await expect(tab.page.get_by_role("list", name="Chats").get_by_role("link")).to_have_count(2)
    await tab.page.evaluate(
        """() => { for (const link of document.querySelectorAll(".chats a")) link.click(); }"""
    )

    await expect(answers(tab)).to_contain_text("Paris")


async def test_a_message_that_is_sent_is_shown(tab: Tab) -> None:
    """Also while an older part of the chat is read."""
    await open_chat(tab)
    await ask_and_wait(tab, "long\n" * 100)
    await tab.page.get_by_role("log").evaluate("box => { box.scrollTop = 0; }")
    await expect(answers(tab)).not_to_be_in_viewport()
    await ask_and_wait(tab, CAPITAL)

    await expect(answers(tab).last).to_be_in_viewport()


async def test_a_hidden_tab_keeps_what_came_since_its_last_frame(tab: Tab) -> None:
    """Browsers give it no frames; the reload writes over nothing that is newer."""
    await open_chat(tab)
    await stream_story(tab)
    await tab.page.evaluate("window.requestAnimationFrame = () => 1")
    async with second_tab(tab) as other:
        await wait_for_growth(other)
        await wait_for_growth(other)
        stored = await answers(other).locator(".markdown").text_content()
    await tab.page.reload()
    await expect(answers(tab)).to_contain_text("stopped")
    kept = await answers(tab).locator(".markdown").text_content()

    assert kept is not None
    assert stored is not None
    assert len(kept) >= len(stored)


async def test_the_address_of_a_deleted_chat_hides_no_other(tab: Tab) -> None:
    """A reload shows the chat that was begun after it."""
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)
    await tab.page.get_by_role("link", name=CAPITAL).click()
    tab.page.once("dialog", lambda dialog: dialog.accept())
    await tab.page.locator(".chats").get_by_role("button", name="Delete").click()
    await expect(answers(tab)).to_have_count(0)
    await ask_and_wait(tab, "What is the capital of Italy?")
    await tab.page.reload()

    await expect(answers(tab)).to_contain_text("Rome")


async def test_escape_in_a_dialog_stops_no_answer(tab: Tab) -> None:
    """It closes the dialog alone."""
    await open_chat(tab)
    await stream_story(tab)
    await tab.page.get_by_role("button", name="Enter a key").click()
    await tab.page.get_by_role("dialog").wait_for()
    await tab.page.keyboard.press("Escape")
    await expect(tab.page.get_by_role("dialog")).to_be_hidden()
    await wait_for_growth(tab)

    await tab.page.keyboard.press("Escape")
    await expect(answers(tab)).to_contain_text("stopped")


async def test_an_edit_survives_other_views_and_reloads(tab: Tab) -> None:
    """Escape ends it, and leaves the message as it was."""
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)
    question = tab.page.get_by_role("article", name="You")
    await question.get_by_role("button", name="Edit").click()
    box = question.get_by_label("Edit the message")
    await expect(box).to_be_focused()
    await box.fill("What is the capital of")
    await tab.go("files")
    await tab.page.get_by_role("heading", name="Files").wait_for()
    await tab.page.go_back()
    await expect(box).to_have_value("What is the capital of")
    await tab.page.reload()
    await expect(box).to_have_value("What is the capital of")
    await box.press("Escape")

    await expect(question).to_contain_text(CAPITAL)
    await expect(answers(tab)).to_have_count(1)


async def test_the_way_back_leads_to_the_chat_before(tab: Tab) -> None:
    """Also to one that was begun here, whose address did not name it."""
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)
    await tab.page.get_by_role("button", name="New chat").click()
    await ask_and_wait(tab, "What is the capital of Italy?")
    await expect(answers(tab)).to_contain_text("Rome")
    await tab.page.go_back()
    await expect(answers(tab)).to_contain_text("Paris")
    await tab.page.go_forward()

    await expect(answers(tab)).to_contain_text("Rome")


async def test_the_way_forward_is_the_browsers(tab: Tab) -> None:
    """Although the chat that is left puts its address there at the last moment."""
    await open_chat(tab)
    await ask_and_wait(tab, CAPITAL)
    await tab.page.get_by_role("button", name="New chat").click()
    await ask_and_wait(tab, "What is the capital of Italy?")
    await tab.page.go_back()
    await expect(answers(tab)).to_contain_text("Paris")
    left = await tab.page.evaluate("location.hash")
    late = "left => addEventListener('popstate', () => history.replaceState(null, '', left))"
    await tab.page.evaluate(late, left)
    await tab.page.go_forward()

    await expect(answers(tab)).to_contain_text("Rome")
