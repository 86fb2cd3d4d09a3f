"""What a model writes, as the page shows it: a real gateway and Chromium, a scripted model."""

from playwright.async_api import expect

from tests.support.browser import needs_chromium, open_tab, run_browser
from tests.support.fake_inference import Script
from tests.support.loopback_gateway import Loopback

pytestmark = needs_chromium
HOSTILE = """# Title

**bold** <img src=x onerror="document.title='owned'"> <script>document.title='owned'</script>
![pixel](http://127.0.0.1:9/pixel.png) [link](javascript:document.title='owned')

| a | b |
|---|---|
| 1 | 2 |
"""


async def show(gateway: Loopback, script: Script) -> list[str]:
    """Ask the scripted model on the page; return what is seen before and after unfolding."""
    gateway.fake.script = script
    async with run_browser() as browser, open_tab(browser, gateway.url) as tab:
        await tab.go("chat")
        await tab.page.get_by_role("textbox", name="Message", exact=True).fill("Hello")
        await tab.page.keyboard.press("Enter")
        answer = tab.page.get_by_role("article", name="Model")
        await expect(answer.get_by_role("button", name="Regenerate")).to_be_visible()
        assert await tab.page.title() != "owned"
        if not script.reasoning:
            return [await answer.locator(".markdown").inner_html()]
        folded = await answer.inner_text()
        await answer.get_by_text("Reasoning").click()
        return [folded, await answer.inner_text()]


async def test_reasoning_is_folded(gateway: Loopback) -> None:
    """It is shown when its summary is chosen."""
    folded, unfolded = await show(gateway, Script(reasoning=("I think ", "hard.")))

    assert "Hello world" in folded
    assert "I think hard." not in folded
    assert "I think hard." in unfolded


async def test_markup_of_a_model_is_text(gateway: Loopback) -> None:
    """Markdown is rendered; tags, scripts, remote pictures and script links are not."""
    (shown,) = await show(gateway, Script(pieces=[HOSTILE]))

    assert "<h1>Title</h1>" in shown
    assert "<strong>bold</strong>" in shown
    assert "<td>1</td>" in shown
    assert "&lt;img" in shown
    assert not any(mark in shown for mark in ("<img", "<script", "onerror=&quot;", "javascript:"))
