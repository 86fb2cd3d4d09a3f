"""Long texts in the chat of the page: what grows is made, and nothing else, in Chromium."""

from typing import Any

import pytest
from playwright.async_api import expect

from tests.support.browser import Tab, needs_chromium

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]

GROW = """async ([text, pieces]) => {
  const [{ Markdown }, { render, h }] = await Promise.all([
    import(new URL("js/markdown.js", document.baseURI)), import("preact")]);
  const parse = DOMParser.prototype.parseFromString;
  let parsed = 0;
  DOMParser.prototype.parseFromString = function (html, ...rest) {
    parsed += String(html).length;
    return parse.call(this, html, ...rest);
  };
  const box = document.getElementById("app");
  render(null, box);
  box.replaceChildren();
  for (let piece = 1; piece <= pieces; piece++) {
    render(h(Markdown, { text: text.slice(0, Math.ceil(text.length * piece / pieces)) }), box);
    await new Promise(requestAnimationFrame);
  }
  DOMParser.prototype.parseFromString = parse;
  return parsed;
}"""
"""Shows a text that grows in pieces; returns how many characters of HTML were parsed."""


async def grow(tab: Tab, text: str, pieces: int) -> int:
    await tab.go("files")
    await tab.page.get_by_role("heading", name="Files").wait_for()
    parsed: Any = await tab.page.evaluate(GROW, [text, pieces])
    return int(parsed)


@pytest.mark.parametrize("indent", ["", "  "])
async def test_a_long_list_grows_by_its_last_item(tab: Tab, indent: str) -> None:
    """Also one within an item: the items before are not made again with each piece."""
    items = "\n".join(f"{indent}- item **{number}** of the list" for number in range(1000))
    text = f"- outer\n{items}" if indent else items
    parsed = await grow(tab, text, 50)

    await expect(tab.page.get_by_role("listitem")).to_have_count(1000 + bool(indent))
    await expect(tab.page.locator("li strong").last).to_have_text("999")
    assert parsed < 5 * len(text)


async def test_a_list_is_shown_as_before(tab: Tab) -> None:
    """Its numbers, tasks, paragraphs and code in items, and lists in them."""
    text = (
        "3. three\n4. four\n   - [x] done\n   - [ ] open <b>\n\n   more of *four*\n\n"
        "   ```python\n   x = 1\n   ```\n5. five [link][1]\n\n[1]: http://example.com"
    )
    await grow(tab, text, 3)
    page = tab.page
    await expect(page.locator("ol")).to_have_attribute("start", "3")
    await expect(page.locator("ol > li")).to_have_count(3)
    await expect(page.locator("ul > li").first.get_by_role("checkbox")).to_be_checked()
    await expect(page.locator("ul > li").last).to_contain_text("open <b>")
    await expect(page.locator("ol > li").nth(1).locator("em")).to_have_text("four")
    await expect(page.locator("ol > li").nth(1).locator("pre")).to_have_text("x = 1")
    await expect(page.get_by_role("link", name="link")).to_have_attribute(
        "href", "http://example.com"
    )
