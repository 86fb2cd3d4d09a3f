"""What can be attached to a message: texts of all kinds, and what the microphone hears."""

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
import soundfile  # type: ignore[import-untyped]
from playwright.async_api import Browser, FilePayload, Route, expect

from tests.support.browser import (
    NARROW,
    WIDE,
    Tab,
    in_both_browsers,
    needs_chromium,
    open_tab,
)
from tests.support.chat_page import answers, ask, ask_and_wait, open_chat
from tests.support.network import run_network
from tests.support.services import Corral

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]

TEXTS = {
    "table.csv": ("text/csv", b"city,people\nParis,2100000\n"),
    "data.json": ("application/json", b'{"city": "Rome"}'),
    "code.py": ("text/x-python", b"print('hello')\n"),
    "code.ts": ("video/mp2t", b"const a: number = 1;\n"),
    "drawing.svg": ("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>\n"),
}
"""The files, with the types that browsers give them."""


async def test_texts_of_all_kinds_are_attached(tab: Tab) -> None:
    """Tables, JSON and source code are read as documents, whatever their type is."""
    files = [FilePayload(name=n, mimeType=t, buffer=b) for n, (t, b) in TEXTS.items()]
    await open_chat(tab)
    await tab.page.get_by_label("Max tokens").fill("5")
    await tab.page.get_by_label("Files").set_input_files(files)
    attached = tab.page.get_by_role("list", name="Attachments").get_by_role("listitem")
    await expect(attached).to_have_count(len(files))
    async with tab.sends("**/v1/chat/completions") as body:
        await ask_and_wait(tab, "What is this?")

    parts = body["messages"][0]["content"][:-1]
    assert {part["type"] for part in parts} == {"file"}
    assert [part["file"]["filename"] for part in parts] == [*TEXTS]
    await expect(answers(tab)).to_contain_text("tokens")
    await expect(answers(tab).get_by_role("alert")).to_have_count(0)


async def let_models_hear(route: Route) -> None:
    """Answer with the models of the server, as if they could hear."""
    models: Any = await (await route.fetch()).json()
    for model in models["data"]:
        model["input_modalities"].append("audio")
    await route.fulfill(json=models)


@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_the_microphone_records_for_a_model_that_hears(
    browser: Browser, server: Corral, width: int
) -> None:
    """A WAV file of 16 kHz with what the microphone heard; it works with the keyboard."""

    async def answer(route: Route) -> None:
        chunk = {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "A beep."}}]}
        text = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        await route.fulfill(content_type="text/event-stream", body=text)

    async with open_tab(browser, server.url, width=width) as tab:
        await tab.page.context.grant_permissions(["microphone"])
        await tab.page.route("**/v1/models", let_models_hear)
        await tab.page.route("**/v1/chat/completions", answer)
        await tab.go("chat")
        await tab.page.get_by_role("button", name="Record").press("Enter")
        stop = tab.page.get_by_role("button", name="Stop recording")
        await expect(stop).to_have_text("Stop recording (2 s)")
        await expect(stop).to_be_focused()
        await stop.press("Enter")
        await expect(tab.page.get_by_label("recording.wav", exact=True)).to_be_visible()
        async with tab.sends("**/v1/chat/completions") as body:
            await ask(tab, "What do you hear?")
        await expect(answers(tab)).to_contain_text("A beep.")
        assert await tab.overflow() == 0

    sound, _ = body["messages"][0]["content"]
    assert (sound["type"], sound["input_audio"]["format"]) == ("input_audio", "wav")
    data = io.BytesIO(base64.b64decode(sound["input_audio"]["data"]))
    samples, rate = soundfile.read(data)
    assert (rate, samples.ndim) == (16_000, 1)
    assert 1.5 < len(samples) / rate < 30
    assert np.abs(samples).max() > 0.01


async def test_a_model_that_does_not_hear_has_no_microphone(tab: Tab) -> None:
    """Nor has a page that is not secure, to which browsers give none."""
    await open_chat(tab)
    await expect(tab.page.get_by_role("button", name="Attach")).to_be_visible()
    await expect(tab.page.get_by_role("button", name="Record")).to_have_count(0)
    await tab.page.add_init_script(
        "Object.defineProperty(Navigator.prototype, 'mediaDevices', {value: undefined})"
    )
    await tab.page.route("**/v1/models", let_models_hear)
    await tab.page.reload()
    await expect(tab.page.get_by_text("reads text, pictures, sound")).to_be_visible()
    await expect(tab.page.get_by_role("button", name="Record")).to_have_count(0)


async def test_a_microphone_that_is_granted_after_the_view_was_left_is_released(
    browser: Browser, server: Corral
) -> None:
    """Nobody would see that it records."""
    async with open_tab(browser, server.url) as tab:
        await tab.page.context.grant_permissions(["microphone"])
        await tab.page.add_init_script(
            """const ask = MediaDevices.prototype.getUserMedia;
            MediaDevices.prototype.getUserMedia = async function (wanted) {
              window.microphone = await ask.call(this, wanted);
              await new Promise(resolve => { window.grant = resolve; });
              return window.microphone;
            };"""
        )
        await tab.page.route("**/v1/models", let_models_hear)
        await tab.go("chat")
        await tab.page.get_by_role("button", name="Record").click()
        await tab.page.wait_for_function("() => window.grant")
        await tab.go("files")
        await tab.page.get_by_role("heading", name="Files").wait_for()
        await tab.page.evaluate("() => window.grant()")

        await tab.page.wait_for_function("() => !window.microphone.active")


async def test_a_microphone_that_is_refused_is_said(browser: Browser, server: Corral) -> None:
    async with open_tab(browser, server.url) as tab:
        await tab.page.add_init_script(
            """MediaDevices.prototype.getUserMedia = () =>
              Promise.reject(new DOMException("", "NotAllowedError"));"""
        )
        await tab.page.route("**/v1/models", let_models_hear)
        await tab.go("chat")
        await tab.page.get_by_role("button", name="Record").click()

        await expect(
            tab.page.get_by_text("The browser does not let this page use the microphone.")
        ).to_be_visible()
        await expect(tab.page.get_by_role("button", name="Record")).to_be_enabled()


async def test_files_that_are_still_read_hold_the_message_back(tab: Tab) -> None:
    """It would be sent without them; they can be cancelled."""
    await tab.page.add_init_script("FileReader.prototype.readAsDataURL = () => {}")  # takes ever
    await open_chat(tab)
    files = [FilePayload(name=f"{n}.txt", mimeType="text/plain", buffer=b"x") for n in "ab"]
    await tab.page.get_by_label("Files").set_input_files(files)
    await expect(tab.page.get_by_text("Files that are still to be read: 2")).to_be_visible()
    box = tab.page.get_by_role("textbox", name="Message", exact=True)
    await box.fill("Hello!")
    await box.press("Enter")
    await expect(tab.page.get_by_role("button", name="Send")).to_be_disabled()
    await expect(box).to_have_value("Hello!")
    await tab.page.get_by_role("button", name="Cancel").click()
    await ask_and_wait(tab, "Hello!")

    await expect(answers(tab)).to_have_count(1)


@in_both_browsers
async def test_a_file_is_sent_with_progress_and_can_be_cancelled(
    browser: Browser, server: Corral
) -> None:
    """Over a network that stops in its midst; then the form can be sent again."""
    async with run_network(server.url) as network, open_tab(browser, network.url) as tab:
        await tab.go("files")
        await tab.page.get_by_text("Store a file").click()
        form = tab.page.get_by_role("form", name="Store a file")
        name = f"large-{browser.browser_type.name}.bin"
        file = FilePayload(name=name, mimeType="text/plain", buffer=b"x" * 20_000_000)
        await form.get_by_label("File").set_input_files([file])
        network.flows.clear()
        await form.get_by_role("button", name="Store").click()
        await expect(form.get_by_role("progressbar", name="Sent")).to_be_visible()
        await expect(form).to_contain_text("of 19.1 MiB")
        await form.get_by_role("button", name="Cancel").press("Enter")
        await expect(form.get_by_role("alert")).to_have_text("It was cancelled.")
        network.flows.set()
        await form.get_by_role("button", name="Store").click()
        await expect(tab.page.get_by_role("row").filter(has_text=name)).to_contain_text("19.1 MiB")
