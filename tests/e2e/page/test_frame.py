"""The frame of the page: keyboard and navigation."""

import re

import httpx
import pytest
from playwright.async_api import Browser, expect

from tests.support.browser import (
    NARROW,
    VIEWS,
    WIDE,
    Tab,
    in_both_browsers,
    needs_chromium,
    open_tab,
)
from tests.support.chat_page import answers, ask_and_wait, fold, open_chat, unfold
from tests.support.network import run_network
from tests.support.rpc import CAPITAL
from tests.support.services import Corral

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]


DESCRIBE_FOCUS = """() => {
  const at = document.activeElement;
  const name = at.ariaLabel ?? at.labels?.[0]?.textContent ?? at.textContent;
  return at === document.body ? null : [name.trim(), getComputedStyle(at).outlineStyle !== "none"];
}"""


COUNT_BYTES = """() => ["navigation", "resource"]
  .flatMap(type => performance.getEntriesByType(type))
  .reduce((sum, each) => sum + each.transferSize, 0)"""


async def focus_next(tab: Tab) -> tuple[str, bool] | None:
    """Press Tab; return the name of what is focused and whether it is outlined, None at the end."""
    await tab.page.keyboard.press("Tab")
    stop: tuple[str, bool] | None = await tab.page.evaluate(DESCRIBE_FOCUS)
    return stop


@in_both_browsers
async def test_the_keyboard_reaches_everything(tab: Tab) -> None:
    """The first stop skips to the content; every later one has a name and a visible outline."""
    await tab.go("files")
    await tab.page.get_by_text("Store a file").wait_for()
    await tab.page.keyboard.press("Tab")
    await expect(tab.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await tab.page.keyboard.press("Enter")
    await expect(tab.page.get_by_role("heading", name="Files")).to_be_focused()
    await tab.go("chat")
    await expect(tab.page.get_by_role("textbox", name="Message", exact=True)).to_be_focused()
    await tab.page.get_by_role("heading", name="Chat").focus()
    stops = []
    while (stop := await focus_next(tab)) is not None:
        stops.append(stop)
    names = [name for name, _ in stops]

    assert names[:4] == ["Messages", "Message", "Attach", "Send"]
    assert {"Settings", "New chat", "Model", "Temperature", "Tools"} <= set(names)
    assert "" not in names
    assert [name for name, is_outlined in stops if not is_outlined and name != "Message"] == []


@in_both_browsers
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


@pytest.mark.parametrize("fragment", ["chat/%", "__proto__", "nothing", "threads/%E0%A4%A"])
async def test_a_broken_fragment_is_no_blank_page(tab: Tab, fragment: str) -> None:
    """A view is shown."""
    tab.allowed = ("Failed to load resource: the server responded with a status of 404",)
    await tab.go(fragment)

    await expect(tab.page.get_by_role("heading", level=1)).to_be_visible()


async def test_a_key_that_can_be_none_is_refused(tab: Tab) -> None:
    """The dialog names the character."""
    await tab.go("files")
    await tab.page.get_by_role("button", name="Enter a key").click()
    await tab.page.get_by_label("Key", exact=True).fill("sk-ключ")
    await tab.page.get_by_role("button", name="Use this key").click()

    await expect(tab.page.get_by_role("dialog")).to_contain_text('"к" is in no API key')
    await tab.page.get_by_role("button", name="Cancel").click()
    await expect(
        tab.page.get_by_role("region", name="Files").or_(tab.page.get_by_text("Nothing here yet."))
    ).to_be_visible()


@in_both_browsers
async def test_a_text_is_copied_without_https(browser: Browser, server: Corral) -> None:
    """Browsers give such a page no clipboard."""
    async with open_tab(browser, server.url) as tab:
        await tab.page.add_init_script(
            "Object.defineProperty(Navigator.prototype, 'clipboard', {value: undefined})"
        )
        await open_chat(tab)
        await ask_and_wait(tab, CAPITAL)
        await answers(tab).get_by_role("button", name="Copy").click()
        await expect(tab.page.get_by_text("Copied.")).to_be_visible()
        box = tab.page.get_by_role("textbox", name="Message", exact=True)
        await box.focus()
        await tab.page.keyboard.press("Control+V")

        await expect(box).to_have_value(re.compile("Paris"))


@in_both_browsers
async def test_settings_lie_over_the_chat_of_a_narrow_window(
    browser: Browser, server: Corral
) -> None:
    """They push nothing away, and long words do not widen the page."""
    async with open_tab(browser, server.url, width=NARROW) as tab:
        await tab.go("chat")
        box = tab.page.get_by_role("textbox", name="Message", exact=True)
        before = await box.bounding_box()
        await tab.page.get_by_text("Settings", exact=True).click()
        await expect(tab.page.get_by_label("Temperature")).to_be_visible()
        assert await box.bounding_box() == before
        await tab.page.get_by_label("Max tokens").fill("20")
        await tab.page.get_by_text("Settings", exact=True).click()
        await ask_and_wait(tab, "x" * 1000)

        assert await tab.overflow() <= 0


async def test_a_long_chat_of_a_narrow_window_scrolls_over_its_message_box(
    browser: Browser, server: Corral
) -> None:
    """The end is shown above the box, and the list of chats goes when one is chosen."""
    async with open_tab(browser, server.url, width=NARROW) as tab:
        await tab.go("chat")
        await unfold(tab, "Settings")
        await tab.page.get_by_label("Max tokens").fill("20")
        await fold(tab, "Settings")
        await ask_and_wait(tab, "long\n" * 100)
        await expect(tab.page.get_by_role("textbox", name="Message")).to_be_in_viewport(ratio=1)
        await expect(answers(tab)).to_be_in_viewport(ratio=1)
        chats = tab.page.get_by_role("list", name="Chats")
        await tab.page.get_by_text("Chats", exact=True).click()
        await tab.page.get_by_role("button", name="New chat").click()
        await expect(chats).to_be_hidden()
        await expect(tab.page.get_by_role("textbox", name="Message")).to_be_focused()
        await tab.page.get_by_text("Chats", exact=True).click()
        await chats.get_by_role("link").click()
        await expect(chats).to_be_hidden()
        await expect(answers(tab)).to_be_in_viewport(ratio=1)


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


async def test_the_page_is_shown_quickly(browser: Browser, server: Corral) -> None:
    """Its process computes for less than a second, on 400 KB; how long that takes, other processes
    decide too."""
    async with open_tab(browser, server.url) as tab:
        session = await tab.page.context.new_cdp_session(tab.page)
        await session.send("Performance.enable", {"timeDomain": "threadTicks"})
        await tab.go("chat")
        await tab.page.get_by_text(re.compile("Ask .* something.")).wait_for()
        measured = await session.send("Performance.getMetrics")
        metrics = {each["name"]: each["value"] for each in measured["metrics"]}

        assert 0 < metrics["ProcessTime"] <= 1
        assert 100_000 < await tab.page.evaluate(COUNT_BYTES) <= 400_000


async def test_the_message_box_has_the_focus(tab: Tab) -> None:
    """When the page opens, and when one comes back from another view."""
    box = tab.page.get_by_role("textbox", name="Message", exact=True)
    await tab.go("chat")
    await expect(box).to_be_focused()
    await tab.page.get_by_role("link", name="Files").click()
    await expect(tab.page.get_by_role("heading", name="Files")).to_be_focused()
    await tab.page.get_by_role("link", name="Chat", exact=True).click()

    await expect(box).to_be_focused()


async def test_enter_is_a_new_line_on_phones(browser: Browser, server: Corral) -> None:
    """Which have no other key for it; no focus opens a keyboard over the chat."""
    context = await browser.new_context(viewport={"width": NARROW, "height": 800}, has_touch=True)
    page = await context.new_page()
    await page.goto(f"{server.url}/ui/")
    box = page.get_by_role("textbox", name="Message", exact=True)
    await page.get_by_text(re.compile("Ask .* something.")).wait_for()
    await expect(box).not_to_be_focused()
    await box.tap()
    await page.keyboard.type("Hello")
    await page.keyboard.press("Enter")
    await expect(box).to_have_value("Hello\n")
    await page.get_by_role("button", name="Send").tap()

    await expect(page.get_by_role("article", name="You")).to_contain_text("Hello")
    await context.close()


async def test_the_page_works_behind_a_path_prefix(browser: Browser, server: Corral) -> None:
    """Which a proxy takes away. It asks for nothing outside of it, and fits on a tablet."""
    async with (
        run_network(server.url, "/team/llm/") as network,
        open_tab(browser, network.url, width=800) as tab,
    ):
        await tab.page.goto(f"{network.url}/ui")
        await ask_and_wait(tab, CAPITAL)
        await expect(answers(tab)).to_contain_text("Paris")
        for view in VIEWS:
            await tab.go(view)
            await expect(tab.page.get_by_text("Loading…")).to_have_count(0)
            await expect(tab.page.get_by_role("alert")).to_have_count(0)
            assert await tab.overflow() == 0, view
        registered = await tab.page.evaluate("navigator.serviceWorker.ready.then(it => it.scope)")

        assert registered == f"{network.url}/ui/"


async def test_the_page_can_be_installed(tab: Tab) -> None:
    """As browsers see it; a tab of a test is none that they offer it in."""
    await tab.go("chat")
    await tab.page.evaluate("navigator.serviceWorker.ready.then(() => null)")
    session = await tab.page.context.new_cdp_session(tab.page)
    found = await session.send("Page.getInstallabilityErrors")

    errors = {each["errorId"] for each in found["installabilityErrors"]}
    assert errors <= {"in-incognito"}


@pytest.mark.parametrize("width", [NARROW, 800, WIDE])
async def test_stacked_characters_and_long_ids_stay_in_their_message(
    browser: Browser, server: Corral, width: int
) -> None:
    """No view is wider than its window, nor does a message lie over the next one. A wide table
    scrolls by itself."""
    stacked = "Z" + "\u0336\u0310\u0307" * 300
    table = f"{'| title ' * 40}|\n{'|---' * 40}|\n{'| value ' * 40}|"
    async with httpx.AsyncClient(base_url=server.api, trust_env=False) as client:
        items = [
            {"type": "message", "role": role, "content": text}
            for role in ("user", "assistant")
            for text in (stacked, "i" * 2000, table)
        ]
        body = {"metadata": {"title": "t" * 500}, "items": items}
        created = (await client.post("/conversations", json=body)).json()["id"]
    async with open_tab(browser, server.url, width=width) as tab:
        await tab.go(f"conversations/{created}")
        shown = tab.page.get_by_role("log").get_by_role("article")
        await expect(shown).to_have_count(6)
        clips = "all => all.map(each => getComputedStyle(each).overflowX)"
        assert await shown.evaluate_all(clips) == ["clip"] * 6
        assert await tab.overflow() == 0
        await tab.page.get_by_role("button", name="Open a copy in the chat").click()
        await expect(tab.page.get_by_role("heading", name="Chat")).to_be_visible()
        await expect(answers(tab)).to_have_count(1)
        assert await tab.overflow() == 0
        wide = "table => table.scrollWidth > table.clientWidth"
        assert await answers(tab).get_by_role("table").evaluate(wide)
