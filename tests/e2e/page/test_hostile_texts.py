"""Texts that try to run a script or to reach another host, wherever the page shows them."""

from typing import Any

import httpx
import pytest
from playwright.async_api import expect

from tests.support.browser import Tab, in_both_browsers, needs_chromium
from tests.support.services import MODEL, Corral

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]

RUN = "window.ran=1"
HTML = (
    f"<script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<svg onload={RUN}>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<math><mi//xlink:href='data:x,<script>{RUN}</script>'>",
    f"<math><annotation-xml encoding='text/html'><img src onerror={RUN}></annotation-xml></math>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<details open ontoggle={RUN}>",
    f"<a href='javascript:{RUN}'>x</a>",
    f"<form action='javascript:{RUN}'><button>x</button></form>",
    "<style>@import url(http://127.0.0.1:9/x);</style>",
    "<base href='http://127.0.0.1:9/'>",
    f"<noscript><p title='</noscript><img src onerror={RUN}>'>",
    f"<template><script>{RUN}</script></template>",
)
MARKDOWN = (
    f"[x](javascript:{RUN})",
    f"[x](JaVaScRiPt&colon;{RUN})",
    f"[x](data:text/html,<script>{RUN}</script>)",
    f"[x]: javascript:{RUN}\n\n[x]",
    "![x](http://127.0.0.1:9/picture.png)",
    f'![x"onerror="{RUN}](x"onerror="{RUN})',
    f"<javascript:{RUN}>",
    f'```"><img src onerror={RUN}>\n<img src onerror={RUN}>\n```',
    f"```html\n<script>{RUN}</script><img src=x onerror={RUN}>\n```",
    f"| <img src onerror={RUN}> |\n|-|\n| <svg onload={RUN}> |",
)
MATH = (
    rf"$\href{{javascript:{RUN}}}{{x}}$",
    rf"$\url{{javascript:{RUN}}}$",
    rf"$\text{{<img src onerror={RUN}>}}$",
    rf"$$\class{{x' onclick='{RUN}}}{{y}}$$",
    r"$$\style{background:url(http://127.0.0.1:9/x)}{y}$$",
    rf"$\data{{x=\"><img src onerror={RUN}>}}{{y}}$",
    r"$\includegraphics{http://127.0.0.1:9/x.png}$",
    r"$\def\x{\x\x}\x$",
    rf"\(</math><img src onerror={RUN}>\)",
    rf"\[\color{{red\"onload=\"{RUN}}} x\]",
)
TEXTS = (*HTML, *MARKDOWN, *MATH)


async def check_nothing_ran(tab: Tab) -> None:
    """No script has run, no link would run one, and no picture is of the model."""
    hrefs = "[...document.querySelectorAll('main a')].map(link => link.protocol)"
    assert await tab.page.evaluate("window.ran") is None
    assert set(await tab.page.evaluate(hrefs)) <= {"http:", "https:", ":"}  # ":": no address
    assert await tab.page.locator("main :is(img, iframe, form.x, object, embed, base)").count() == 0


@in_both_browsers
async def test_what_a_model_wrote_runs_nothing(tab: Tab, server: Corral) -> None:
    """In a conversation, and in the copy of it in the chat, while libraries are fetched."""
    items = [{"type": "message", "role": "assistant", "content": text} for text in TEXTS]
    async with httpx.AsyncClient(base_url=server.api, trust_env=False) as client:
        title = f"<img src onerror={RUN}>"
        body = {"metadata": {"title": title}, "items": items[:20]}
        created = (await client.post("/conversations", json=body)).raise_for_status().json()
        path = f"/conversations/{created['id']}"
        for at in range(20, len(items), 20):
            more = {"items": items[at : at + 20]}
            (await client.post(f"{path}/items", json=more)).raise_for_status()
    await tab.go(path.strip("/"))
    articles = tab.page.get_by_role("log").get_by_role("article")
    await expect(articles).to_have_count(len(TEXTS))
    await expect(tab.page.locator("math").first).to_be_attached()
    await expect(tab.page.locator(".hljs-tag").first).to_be_attached()
    await check_nothing_ran(tab)
    await tab.page.get_by_role("button", name="Open a copy in the chat").click()
    await expect(tab.page.get_by_role("link", name=title)).to_be_visible()
    await check_nothing_ran(tab)


@in_both_browsers
async def test_names_and_messages_run_nothing(tab: Tab, server: Corral) -> None:
    """Of threads, assistants, files and vector stores."""
    async with httpx.AsyncClient(base_url=server.api, trust_env=False) as client:

        async def create(path: str, **parts: Any) -> Any:
            return (await client.post(f"/{path}", **parts)).raise_for_status().json()

        messages = [{"role": "user", "content": text} for text in HTML]
        thread = await create("threads", json={"messages": messages})
        await create("assistants", json={"model": MODEL, "name": HTML[1], "instructions": HTML[0]})
        await create("vector_stores", json={"name": HTML[1]})
        upload = {"file": (HTML[1].replace("/", ""), b"x")}
        await create("files", files=upload, data={"purpose": "user_data"})
    for view in (f"threads/{thread['id']}", "assistants", "files", "vector-stores"):
        await tab.go(view)
        await expect(tab.page.get_by_text("onerror").first).to_be_attached()
        await check_nothing_ran(tab)
