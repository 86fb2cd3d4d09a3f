"""Deque's axe-core over every view of the page: roles, names, order of headings, contrast."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.async_playwright import Axe

from tests.support.browser import NARROW, VIEWS, WIDE, needs_chromium, open_tab, run_browser
from tests.support.rpc import CAPITAL
from tests.support.services import Corral, corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120), needs_chromium]


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """`corral up` without keys: every view is shown."""
    with corral_up(tmp_path_factory.mktemp("axe")) as running:
        yield running


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_axe_finds_no_violation(corral: Corral, width: int, scheme: str) -> None:
    """In both widths and both colour schemes; and no view is wider than the window."""
    found, overflow = {}, {}
    async with (
        run_browser() as browser,
        open_tab(browser, corral.url, width=width, scheme=scheme) as tab,
    ):
        await tab.page.goto(f"{corral.url}/ui/")
        await tab.page.get_by_role("textbox", name="Message", exact=True).fill(CAPITAL)
        await tab.page.keyboard.press("Enter")
        await tab.page.get_by_role("button", name="Regenerate").wait_for()
        for view in VIEWS:
            await tab.go(view)
            await tab.page.wait_for_load_state("networkidle")
            results = await Axe().run(tab.page)
            found[view] = [
                f"{each['id']}: {node['html'][:200]}"
                for each in results.response["violations"]
                for node in each["nodes"]
            ]
            overflow[view] = await tab.overflow()

    assert found == {view: [] for view in VIEWS}
    assert overflow == {view: 0 for view in VIEWS}
