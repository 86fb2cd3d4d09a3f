"""Deque's axe-core over every view of the page: roles, names, order of headings, contrast."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Route, expect

from tests.support.browser import NARROW, VIEWS, WIDE, Tab, needs_chromium, open_tab, run_browser
from tests.support.chat_page import ask, fold, unfold
from tests.support.rpc import CAPITAL
from tests.support.services import MODEL, Corral, corral_up

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
OPEN_FORMS = "document.querySelectorAll('details.panel').forEach(form => { form.open = true; })"
pytestmark = [pytest.mark.e2e, needs_chromium]
in_windows = pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (WIDE, "light"),
        (NARROW, "dark"),
        pytest.param(WIDE, "dark", marks=pytest.mark.slow),
        pytest.param(NARROW, "light", marks=pytest.mark.slow),
    ],
)
"""Each width and each colour scheme; all of both by `make prove`."""


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """`corral up` without keys: every view is shown."""
    with corral_up(tmp_path_factory.mktemp("axe")) as running:
        yield running


@pytest.fixture(scope="module")
def views(corral: Corral) -> list[str]:
    """Every view, with an object of each kind in its list and on a page of its own."""
    with httpx.Client(base_url=corral.url, trust_env=False, timeout=50) as client:

        def create(path: str, **body: Any) -> str:
            created = client.post(path, **(body if "files" in body else {"json": body}))
            assert created.status_code == 200, created.text
            return str(created.json().get("id", ""))

        conversation = create("/v1/conversations", metadata={"title": "Capitals"})
        ask = {"model": MODEL, "input": CAPITAL}
        response = create("/v1/responses", **ask, conversation=conversation)
        assistant = create("/v1/assistants", model=MODEL, name="Tutor", tools=[WEATHER])
        thread = create("/v1/threads", messages=[{"role": "user", "content": CAPITAL}])
        create(f"/v1/threads/{thread}/runs", assistant_id=assistant)
        lines = {"file": ("lines.jsonl", b"not a line")}
        file = create("/v1/files", files=lines, data={"purpose": "batch"})
        batch = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        create("/v1/batches", input_file_id=file, **batch)
        create("/admin/keys", name="laptop")
        limit = {"id": "burst", "unit": "UNIT_REQUESTS", "amount": "100000"}
        create("/admin/limits", limit=limit | {"period": "PERIOD_MINUTE"})
        session = client.get("/admin/sessions").json()["sessions"][0]["session_id"]
    pages = {"conversations": conversation, "responses": response, "threads": thread}
    pages["sessions"] = session
    return [*VIEWS, *(f"{view}/{object_id}" for view, object_id in pages.items())]


async def violations(tab: Tab) -> list[str]:
    """What axe finds in the page as it is now."""
    results = await Axe().run(tab.page)
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in results.response["violations"]
        for node in each["nodes"]
    ]


@in_windows
async def test_axe_finds_no_violation(
    corral: Corral, views: list[str], width: int, scheme: str
) -> None:
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
        for _ in range(2):  # the question, and the answer
            await tab.page.get_by_role("button", name="Edit").first.click()
        found["edits"] = await violations(tab)
        overflow["edits"] = await tab.overflow()
        for view in views:
            await tab.go(view)
            link = tab.page.locator("nav [aria-current=page]")
            await expect(link).to_have_attribute("href", f"#/{view.partition('/')[0]}")
            await expect(tab.page.get_by_text("Loading…")).to_have_count(0, timeout=30_000)
            if view == "keys":
                await tab.page.get_by_role("button", name="Rotate").click()
            await tab.page.evaluate(OPEN_FORMS)
            found[view] = await violations(tab)
            overflow[view] = await tab.overflow()

    states = ["edits", *views]
    assert found == {state: [] for state in states}
    assert overflow == {state: 0 for state in states}


def sse(*events: dict[str, Any]) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events)


ASKED = sse(
    *(
        {"type": "response.output_item.done", "item": item}
        for item in (
            {"type": "mcp_list_tools", "id": "l", "error": "The server did not answer."},
            {"type": "mcp_call", "id": "c", "server_label": "shop", "name": "order", "error": None}
            | {"arguments": '{"ware": "tea"}', "output": "Ordered: tea"},
            {"type": "mcp_call", "id": "d", "server_label": "shop", "name": "burn", "output": None}
            | {"arguments": "{}", "error": "The shop is on fire."},
            {"type": "mcp_approval_request", "id": "a", "server_label": "shop", "name": "order"}
            | {"arguments": '{"ware": "coffee"}'},
            {"type": "function_call", "call_id": "f", "name": "get_weather", "arguments": "{}"},
        )
    ),
    {"type": "response.completed", "response": {}},
)
"""An answer with calls of every kind."""


@in_windows
async def test_axe_finds_no_violation_in_calls_of_tools(
    corral: Corral, width: int, scheme: str
) -> None:
    """Those that were made and that wait, the settings that choose the tools, and a recording."""

    async def let_models_hear(route: Route) -> None:
        models: Any = await (await route.fetch()).json()
        for model in models["data"]:
            model["input_modalities"].append("audio")
        await route.fulfill(json=models)

    async def ask_for_approval(route: Route) -> None:
        await route.fulfill(content_type="text/event-stream", body=ASKED)

    async with (
        run_browser() as browser,
        open_tab(browser, corral.url, width=width, scheme=scheme) as tab,
    ):
        await tab.page.context.grant_permissions(["microphone"])
        await tab.page.route("**/v1/models", let_models_hear)
        await tab.page.route("**/v1/responses", ask_for_approval)
        servers = {"data": [{"id": "shop", "object": "mcp_server"}]}
        await tab.page.route("**/mcp_servers", lambda route: route.fulfill(json=servers))
        await tab.go("chat")
        await unfold(tab, "Settings")
        await tab.page.get_by_text("Tools of the server").click()
        await tab.page.get_by_label("shop", exact=True).check()
        found = [await violations(tab)]
        await fold(tab, "Settings")
        await ask(tab, "Order tea.")
        await tab.page.get_by_role("button", name="Approve").wait_for()
        await tab.page.get_by_role("button", name="Record").click()
        await tab.page.get_by_role("button", name="Stop recording").wait_for()
        found.append(await violations(tab))
        assert await tab.overflow() == 0

    assert found == [[], []]
