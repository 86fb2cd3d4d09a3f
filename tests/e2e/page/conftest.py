"""Tabs of a real browser on the page of a running Corral."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.support.browser import Tab, open_tab, run_browser
from tests.support.services import Corral


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(request: pytest.FixtureRequest) -> AsyncIterator[Browser]:
    """Chromium, or the browser of the parameter, started once for a module."""
    async with run_browser(getattr(request, "param", "chromium")) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def tab(browser: Browser, server: Corral) -> AsyncIterator[Tab]:
    """A tab on `server`, wide and light."""
    async with open_tab(browser, server.url) as tab:
        yield tab
