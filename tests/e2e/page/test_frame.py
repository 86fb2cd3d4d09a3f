"""The frame of the page: keyboard, navigation, and the key."""

import re
from collections.abc import Iterator

import pytest
from playwright.async_api import Browser, expect

from tests.support.browser import NARROW, Tab, needs_chromium, open_tab
from tests.support.services import Corral, corral_up, start

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Corral, str]]:
    """`corral up --require-keys`, and a key of it."""
    folder = tmp_path_factory.mktemp("keyed")
    with corral_up(folder, "--require-keys") as corral:
        token = folder / "data" / "service-token"
        flags = ("--target", corral.control, "--service-token-file", token)
        with start(folder, "keys", "create", *flags) as program:
            assert program.wait() == 0
            text = "\n".join(line.text for line in program.stdout)
        match = re.search(r"key \(shown once\): (\S+)", text)
        assert match
        yield corral, match[1]


async def test_the_key_is_asked_once_and_stays_in_the_tab(
    browser: Browser, keyed: tuple[Corral, str]
) -> None:
    """It survives a reload, is stored in the session only, and another tab asks again."""
    corral, key = keyed
    allowed = ("Failed to load resource: the server responded with a status of 401",)
    async with open_tab(browser, corral.url, allowed=allowed) as tab:
        await tab.go("chat")
        dialog = tab.page.get_by_role("dialog", name="API key")
        await expect(dialog).to_contain_text("key")
        await dialog.get_by_label("Key").fill(key)
        await tab.page.keyboard.press("Enter")
        await expect(dialog).to_be_hidden()
        await expect(tab.page.get_by_label("Model", exact=True)).to_have_value("demo-chat")
        await tab.page.reload()
        await expect(tab.page.get_by_label("Model", exact=True)).to_have_value("demo-chat")
        await expect(dialog).to_be_hidden()
        stored = await tab.page.evaluate("[Object.values(sessionStorage), localStorage.length]")
        assert key in stored[0]
        assert stored[1] == 0
        assert await tab.page.evaluate("document.cookie") == ""
    async with open_tab(browser, corral.url, allowed=allowed) as other:
        await other.go("chat")
        await expect(other.page.get_by_role("dialog", name="API key")).to_be_visible()


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
