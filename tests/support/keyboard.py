"""What a person does on a page with the keyboard alone."""

from collections.abc import Sequence

from playwright.async_api import FilePayload, Locator, Page

MAX_STOPS = 300
"""More than any view of the page has."""


async def reach(page: Page, target: Locator) -> None:
    """Press Tab until `target` has the focus."""
    await target.wait_for()
    for _ in range(MAX_STOPS):
        if await target.evaluate("element => element === document.activeElement"):
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {target}")


async def press(page: Page, target: Locator, key: str = "Enter") -> None:
    """Activate a button, a link or a summary."""
    await reach(page, target)
    await page.keyboard.press(key)


async def write(page: Page, target: Locator, text: str) -> None:
    """Replace what a field has."""
    await reach(page, target)
    await page.keyboard.press("Control+A")
    await page.keyboard.press("Delete")
    await page.keyboard.insert_text(text)


async def choose(page: Page, target: Locator, value: str) -> None:
    """Go through the options of a list with the arrows."""
    await reach(page, target)
    await page.keyboard.press("Home")
    while await target.input_value() != value:
        before = await target.input_value()
        await page.keyboard.press("ArrowDown")
        assert await target.input_value() != before, f"{value} is no option"


async def pick(page: Page, button: Locator, files: Sequence[FilePayload]) -> None:
    """Choose files in the dialog that a button opens."""
    async with page.expect_file_chooser() as opened:
        await press(page, button)
    await (await opened.value).set_files(files)
