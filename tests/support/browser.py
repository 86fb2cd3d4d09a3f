"""Real browsers for tests of the page, driven by Playwright."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright, expect

from tests.support.firefox import FIREFOX, launch_firefox

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)"
)
needs_firefox = pytest.mark.skipif(
    FIREFOX is None, reason="Firefox is not installed (Debian: apt-get install firefox-esr)"
)
in_both_browsers = pytest.mark.parametrize(
    "browser",
    ["chromium", pytest.param("firefox", marks=needs_firefox)],
    indirect=True,
    scope="module",
)
WIDE, NARROW = 1400, 400
VIEWS = (
    "chat",
    "conversations",
    "responses",
    "assistants",
    "threads",
    "files",
    "vector-stores",
    "batches",
    "models",
    "adapters",
    "load",
    "sessions",
    "usage",
    "keys",
    "limits",
    "audit",
)
"""The views of the page, as in its URLs."""
PATIENCE_MS = 20_000
_REPORT_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event => {
  violations.push(`${event.violatedDirective}: ${event.blockedURI}`);
});
"""


@dataclass
class Tab:
    page: Page
    url: str
    """The base URL of the gateway."""
    allowed: tuple[str, ...] = ()
    """The beginnings of console errors that the test expects."""
    problems: list[str] = field(default_factory=list)
    """Console errors, uncaught exceptions, and requests to other hosts."""

    async def go(self, view: str) -> None:
        """Open a view, such as "files"."""
        await self.page.goto(f"{self.url}/ui/#/{view}")

    async def check(self) -> None:
        """Fail if anything went wrong since the tab was opened."""
        violations = await self.page.evaluate("window.violations")
        problems = "\n".join([*self.problems, *violations])
        assert not problems, problems

    @asynccontextmanager
    async def sends(self, pattern: str) -> AsyncIterator[dict[str, Any]]:
        """Wait for a request while the body runs; yields its JSON, which is empty until then."""
        body: dict[str, Any] = {}
        async with self.page.expect_request(pattern) as sent:
            yield body
        body.update((await sent.value).post_data_json or {})

    async def overflow(self) -> int:
        """By how many pixels the view is wider than the window."""
        script = "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
        width: int = await self.page.evaluate(script)
        return width

    def _check_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(self.allowed):
            self.problems.append(f"console: {message.text} ({message.location['url']})")

    def _check_host(self, request: Request) -> None:
        if not request.url.startswith((f"{self.url}/", "data:", "blob:")):
            self.problems.append(f"a request to another host: {request.url}")


@asynccontextmanager
async def run_browser(name: str = "chromium") -> AsyncIterator[Browser]:
    """Run Chromium or Firefox without a window."""
    expect.set_options(timeout=PATIENCE_MS)  # 5 s by default, too few for a busy machine
    async with async_playwright() as playwright:
        if name == "firefox":
            browser = await launch_firefox(playwright)
        else:
            browser = await playwright.chromium.launch(
                executable_path=CHROMIUM,
                args=[
                    "--no-sandbox",  # its own one refuses to run as root
                    "--no-proxy-server",
                    "--use-fake-device-for-media-stream",  # a microphone that beeps
                ],
            )
        yield browser
        await browser.close()


@asynccontextmanager
async def open_tab(
    browser: Browser,
    url: str,
    *,
    width: int = WIDE,
    scheme: Any = "light",
    allowed: tuple[str, ...] = (),
) -> AsyncIterator[Tab]:
    """Open a tab with a session of its own. Leaving checks that nothing went wrong in it."""
    context = await browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, locale="en-GB"
    )
    context.set_default_timeout(PATIENCE_MS)
    await context.add_init_script(_REPORT_VIOLATIONS)
    tab = Tab(await context.new_page(), url, allowed)
    tab.page.on("request", tab._check_host)
    tab.page.on("pageerror", lambda error: tab.problems.append(f"uncaught: {error}"))
    tab.page.on("console", tab._check_message)
    yield tab
    await tab.check()
    await context.close()
