"""The frame of the page: keyboard and navigation."""

import pytest
from playwright.async_api import Browser, expect

from tests.support.browser import NARROW, Tab, needs_chromium, open_tab
from tests.support.services import Corral

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]


DESCRIBE_FOCUS = """() => {
  const at = document.activeElement;
  const name = at.ariaLabel ?? at.labels?.[0]?.textContent ?? at.textContent;
  return at === document.body ? null : [name.trim(), getComputedStyle(at).outlineStyle !== "none"];
}"""


async def focus_next(tab: Tab) -> tuple[str, bool] | None:
    """Press Tab; return the name of what is focused and whether it is outlined, None at the end."""
    await tab.page.keyboard.press("Tab")
    stop: tuple[str, bool] | None = await tab.page.evaluate(DESCRIBE_FOCUS)
    return stop


async def test_the_keyboard_reaches_everything(tab: Tab) -> None:
    """The first stop skips to the content; every later one has a name and a visible outline."""
    await tab.go("chat")
    await tab.page.get_by_label("Model", exact=True).wait_for()
    await tab.page.keyboard.press("Tab")
    await expect(tab.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await tab.page.keyboard.press("Enter")
    await expect(tab.page.get_by_role("heading", name="Chat")).to_be_focused()
    stops = []
    while (stop := await focus_next(tab)) is not None:
        stops.append(stop)
    names = [name for name, _ in stops]

    assert names[:4] == ["Messages", "Message", "Attach", "Send"]
    assert {"Settings", "New chat", "Model", "Temperature", "Tools"} <= set(names)
    assert "" not in names
    assert [name for name, is_outlined in stops if not is_outlined and name != "Message"] == []


async def test_the_menu_of_a_narrow_window_works_with_the_keyboard(
    browser: Browser, server: Corral
) -> None:
    """It says whether it is open, and closes when a view is chosen."""
    async with open_tab(browser, server.url, width=NARROW) as tab:
        await tab.go("chat")
        menu = tab.page.get_by_role("button", name="Menu")
        views = tab.page.get_by_role("navigation", name="Views")
        await expect(views).to_be_hidden()
        await menu.press("Enter")
        await expect(menu).to_have_attribute("aria-expanded", "true")
        await expect(views.get_by_role("link", name="Chat")).to_have_attribute(
            "aria-current", "page"
        )
        await menu.press("Enter")
        await expect(views).to_be_hidden()


async def test_the_policy_blocks_other_hosts(tab: Tab) -> None:
    """The browser blocks a picture of another host, and the checks of `Tab` see it."""
    await tab.go("chat")
    await tab.page.evaluate(
        "document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x.png'}))"
    )
    await tab.page.wait_for_function("window.violations.length > 0")

    assert await tab.page.evaluate("window.violations") == ["img-src: http://127.0.0.1:9/x.png"]
    assert [problem for problem in tab.problems if "Content Security Policy" in problem]
    tab.problems.clear()
    await tab.page.evaluate("window.violations = []")
