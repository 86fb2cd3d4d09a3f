"""What a user does in the chat of the page."""

import re

from playwright.async_api import Locator, expect

from tests.support.browser import NARROW, Tab
from tests.support.services import MODEL

READ_STORED = """store => new Promise(resolve => {
  indexedDB.open("corral", 1).onsuccess = ({ target: { result: database } }) => {
    const found = database.transaction(store).objectStore(store).getAll();
    found.onsuccess = () => { database.close(); resolve(found.result); };
  };
})"""
"""What the browser keeps of chats; it waits for what is being written."""


async def open_chat(tab: Tab) -> None:
    """Show the chat, with answers that are the same each time."""
    await tab.go("chat")
    await tab.page.get_by_label("Model", exact=True).select_option(MODEL)
    await tab.page.get_by_label("Temperature").fill("0")


def answers(tab: Tab) -> Locator:
    return tab.page.get_by_role("article", name="Model")


async def ask(tab: Tab, text: str) -> None:
    """Send a message with the keyboard, as a user does, and wait until it is shown."""
    box = tab.page.get_by_role("textbox", name="Message", exact=True)
    await box.fill(text)
    await tab.page.keyboard.press("Enter")
    await expect(box).to_have_value("")


async def ask_and_wait(tab: Tab, text: str) -> None:
    """Send a message and wait until the answer is whole."""
    await ask(tab, text)
    await expect(answers(tab).last.get_by_role("button", name="Regenerate")).to_be_visible()


async def keep_preset(tab: Tab, name: str) -> None:
    """Keep the system message under a name, which the page asks for."""
    tab.page.once("dialog", lambda dialog: dialog.accept(name))
    await tab.page.get_by_role("button", name="Keep").click()
    await expect(tab.page.get_by_label("Preset")).to_have_value(name)


async def unfold(tab: Tab, panel: str) -> None:
    """Show the panel "Chats" or "Settings", which a narrow window folds."""
    if not await _panel(tab, panel).evaluate("panel => panel.open"):
        await _panel(tab, panel).locator("summary").first.click()


async def fold(tab: Tab, panel: str) -> None:
    """Hide a panel that lies over the chat."""
    size = tab.page.viewport_size
    if size is not None and size["width"] == NARROW:  # it may fold by itself meanwhile
        await _panel(tab, panel).evaluate("panel => { panel.open = false; }")


def _panel(tab: Tab, name: str) -> Locator:
    summary = tab.page.locator("summary", has_text=re.compile(f"^{name}$"))
    return tab.page.locator(".folded", has=summary)
