"""What the page shows of replicas and of engines of others, in Chromium."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Route, expect

from tests.support.browser import NARROW, WIDE, needs_chromium, open_tab
from tests.support.engine_stand_in import EngineStandIn, run_engine
from tests.support.rpc import CAPITAL
from tests.support.services import MODEL, Corral, corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]

ENGINE = "big"
PORT = re.compile(r"127\.0\.0\.1:\d+")


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineStandIn]:
    with run_engine("vllm", "The cat sat.") as running:
        yield running


@pytest.fixture(scope="module")
def corral(engine: EngineStandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """Two replicas of a model, which also use the engine."""
    folder = tmp_path_factory.mktemp("engines")
    model = ("--model", f"{MODEL}=bundled", "--replicas", "2")
    upstream = ("--engine", f"{ENGINE}={engine.url}", "--tokenizer", "bundled")
    with corral_up(folder, *model, *upstream) as running:
        yield running


@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_the_load_of_each_replica_and_model_is_shown(
    browser: Browser, corral: Corral, width: int
) -> None:
    """With the replica that runs a request."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": CAPITAL}],
        "ignore_eos": True,
        "stream": True,
    }
    async with (
        open_tab(browser, corral.url, width=width) as tab,
        httpx.AsyncClient(base_url=corral.api, trust_env=False) as client,
        client.stream("POST", "/chat/completions", json=body),
    ):
        await tab.go("load")
        replicas = tab.page.get_by_role("region", name="Replicas").get_by_role("row")
        await expect(replicas).to_have_count(3)
        await expect(replicas.filter(has_text="serving")).to_have_count(2)
        await expect(replicas.filter(has_text=re.compile("serving1 of"))).to_have_count(1)
        models = tab.page.get_by_role("region", name="Models").get_by_role("row")
        await expect(models.filter(has_text=MODEL)).to_contain_text(re.compile(r"1 of \d+"))
        await expect(models.filter(has_text=MODEL).get_by_role("cell").last).not_to_have_text("0")
        request = tab.page.get_by_role("region", name="Requests").get_by_role("row").nth(1)
        await expect(request).to_contain_text(PORT)
        assert await tab.overflow() == 0


async def test_the_turns_of_a_session_have_their_replicas(browser: Browser, corral: Corral) -> None:
    messages = [{"role": "user", "content": CAPITAL}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 2, "prompt_cache_key": "tourist"}
    async with httpx.AsyncClient(base_url=corral.api, trust_env=False, timeout=60) as client:
        for _ in range(2):
            assert (await client.post("/chat/completions", json=body)).is_success
    async with open_tab(browser, corral.url) as tab:
        await tab.go("sessions")
        await tab.page.get_by_role("link", name="tourist").click()
        turns = tab.page.get_by_role("region", name="Turns").get_by_role("row")
        await expect(turns).to_have_count(3)
        await expect(turns.nth(1)).to_contain_text(PORT)


async def test_a_replica_that_loads_its_model_does_not_serve(
    browser: Browser, corral: Corral
) -> None:
    async def unload(route: Route) -> None:
        loads: Any = await (await route.fetch()).json()
        loads["replicas"][0]["load"]["models"] = []
        await route.fulfill(json=loads)

    async with open_tab(browser, corral.url) as tab:
        await tab.page.route("**/admin/load", unload)
        await tab.go("load")
        replicas = tab.page.get_by_role("region", name="Replicas").get_by_role("row")
        await expect(replicas.nth(1)).to_contain_text("no model is loaded")
        await expect(replicas.nth(2)).to_contain_text("serving")
        await tab.page.unroute_all(behavior="ignoreErrors")


@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_engines_of_others_are_shown(
    browser: Browser, corral: Corral, engine: EngineStandIn, width: int
) -> None:
    """With name, URL and state; the explanation says what they honour."""
    async with open_tab(browser, corral.url, width=width) as tab:
        await tab.go("models")
        row = tab.page.get_by_role("row").filter(has=tab.page.get_by_text(ENGINE, exact=True))
        await expect(row).to_contain_text(re.compile(r"by vllm \d"))
        endpoints = row.get_by_role("list", name="Engines").get_by_role("listitem")
        await expect(endpoints).to_contain_text([engine.url])
        await expect(endpoints.first).to_contain_text("up")
        await tab.page.get_by_role("button", name=f"Explain {ENGINE}").click()
        explanation = tab.page.get_by_role("region", name=f"Explanation of {ENGINE}")
        await expect(explanation.get_by_role("heading", name="upstream")).to_be_visible()
        await expect(explanation).to_contain_text(engine.url)
        assert await tab.overflow() == 0
