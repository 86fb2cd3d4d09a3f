"""The views for operators and the routes under /admin behind them, with keys, in Chromium."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from playwright.async_api import Browser, expect

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.browser import NARROW, WIDE, Tab, needs_chromium, open_tab
from tests.support.model_hub import ModelHub, run_model_hub
from tests.support.rpc import CAPITAL
from tests.support.services import MODEL, Corral, corral_up, start

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

SECOND = "second:model"
DOWNLOAD = "third-Q8_0.gguf"


@dataclass(frozen=True)
class Keyed:
    """A Corral that requires keys, and adds models from `hub`; `admin` and `plain` are keys with
    and without scope admin."""

    corral: Corral
    hub: ModelHub
    admin: str
    plain: str

    def http(self, key: str = "") -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.corral.url, headers=headers, trust_env=False, timeout=30)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """`corral up --require-keys` with a second model that is loaded on demand."""
    folder = tmp_path_factory.mktemp("keyed")
    flags = ("--require-keys", "--model", f"{MODEL}=bundled", "--model", f"{SECOND}=bundled")
    inference = {
        "usage_interval_s": 0.1,
        "key_cache_s": 0,
        "per_model": {SECOND: {"load": "manual", "context_tokens": 512}},
    }
    with (
        run_model_hub({DOWNLOAD: BUNDLED_PATH.read_bytes()}) as hub,
        corral_up(
            folder,
            *flags,
            inference={**inference, "model_hosts": [hub.host]},
            gateway={"key_cache_s": 0},
        ) as corral,
    ):
        secrets = []
        for scopes in (("inference", "admin"), ("inference",)):
            words = ["keys", "create", "--control", corral.control, "--service-token-file"]
            words.append(str(folder / "data" / "service-token"))
            for scope in scopes:
                words += ["--scope", scope]
            with start(folder, *words) as program:
                assert program.wait() == 0
                text = "\n".join(line.text for line in program.stdout)
            match = re.search(r"key \(shown once\): (\S+)", text)
            assert match
            secrets.append(match[1])
        yield Keyed(corral, hub, *secrets)


@needs_chromium
async def test_the_key_is_asked_once_and_stays_in_the_tab(browser: Browser, keyed: Keyed) -> None:
    """It survives a reload, is stored in the session only, and another tab asks again."""
    corral, key = keyed.corral, keyed.plain
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
        session, local = await tab.page.evaluate(
            "[sessionStorage, localStorage].map(kept => Object.values(kept))"
        )
        assert json.dumps(key) in session
        assert key not in "".join(local)
        assert await tab.page.evaluate("document.cookie") == ""
    async with open_tab(browser, corral.url, allowed=allowed) as other:
        await other.go("chat")
        await expect(other.page.get_by_role("dialog", name="API key")).to_be_visible()


async def open_view(tab: Tab, key: str, view: str) -> None:
    await tab.go("chat")
    await tab.page.evaluate("key => sessionStorage.setItem('corral.key', JSON.stringify(key))", key)
    await tab.go(view)
    await tab.page.reload()


REFUSED = ("Failed to load resource: the server responded with a status of 40",)


@needs_chromium
async def test_a_key_is_created_and_revoked(browser: Browser, keyed: Keyed) -> None:
    """It is shown once, works at once, and is refused after it was revoked."""
    async with open_tab(browser, keyed.corral.url, allowed=REFUSED) as tab:
        await open_view(tab, keyed.admin, "keys")
        await tab.page.get_by_text("New project").click()
        project = tab.page.get_by_role("form", name="New project")
        await project.get_by_label("Id").fill("shop")
        await project.get_by_role("button", name="Create").click()
        await tab.page.get_by_text("New key").click()
        form = tab.page.get_by_role("form", name="New key")
        await form.get_by_label("Name").fill("laptop")
        await form.get_by_label("Project").select_option("shop")
        await form.get_by_label("Days").fill("90")
        await form.get_by_role("button", name="Create").click()
        secret = await tab.page.get_by_label("Secret").text_content()
        await tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await tab.page.get_by_role("button", name="Copy the key").click()
        await expect(tab.page.get_by_text("Copied.")).to_be_visible()
        assert await tab.page.evaluate("navigator.clipboard.readText()") == secret
        row = tab.page.get_by_role("row").filter(has_text="laptop")
        await expect(row).to_contain_text("active")
        with keyed.http(secret or "") as client:
            assert client.get("/v1/models").status_code == 200
            tab.page.once("dialog", lambda dialog: dialog.accept())
            await row.get_by_role("button", name="Revoke").click()
            await expect(row).to_contain_text("revoked")
            assert client.get("/v1/models").status_code == 401


@needs_chromium
async def test_a_key_is_narrowed_and_rotated(browser: Browser, keyed: Keyed) -> None:
    """To scopes, models and networks; with overlap both secrets work, without it only the new
    one."""
    async with open_tab(browser, keyed.corral.url, allowed=REFUSED) as tab:
        await open_view(tab, keyed.admin, "keys")
        await tab.page.get_by_text("New key").click()
        form = tab.page.get_by_role("form", name="New key")
        await form.get_by_label("Name").fill("robot")
        await form.get_by_label("inference").uncheck()
        await form.get_by_label("generate").check()
        await form.get_by_label("Models").fill(MODEL)
        await form.get_by_label("Networks").fill("127.0.0.0/8")
        await form.get_by_role("button", name="Create").click()
        shown = tab.page.get_by_label("Secret", exact=True)
        secrets = [await shown.text_content() or ""]
        row = tab.page.get_by_role("row").filter(has_text="robot")
        await expect(row).to_contain_text("generate")
        await expect(row).to_contain_text(f"{MODEL}, 127.0.0.0/8")
        for hours in ("24", "0"):
            await row.get_by_role("button", name="Rotate").click()
            form = tab.page.get_by_role("form", name="New secret for robot")
            await form.get_by_label("Hours").fill(hours)
            await form.get_by_role("button", name="Rotate").click()
            await expect(shown).not_to_have_text(secrets[-1])
            secrets.append(await shown.text_content() or "")
            body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
            answers = []
            for secret in secrets:
                with keyed.http(secret) as client:
                    answers.append(client.post("/v1/completions", json=body).status_code)
            assert answers == ([200, 200] if hours == "24" else [401, 401, 200])
        with keyed.http(secrets[-1]) as client:
            assert client.post("/v1/completions", json=body | {"model": SECOND}).status_code == 403


@needs_chromium
@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_the_audit_log_is_read_page_by_page(
    browser: Browser, keyed: Keyed, width: int
) -> None:
    """Newest first, filtered by object; the request of an act is shown on demand."""
    with keyed.http(keyed.admin) as client:
        limit = {"unit": "UNIT_TOKENS", "period": "PERIOD_DAY", "amount": 10**6}
        for number in range(28):
            name = f"audit-{width}-{number}"
            assert client.post("/admin/limits", json={"limit": {"id": name, **limit}}).is_success
            assert client.delete(f"/admin/limits/{name}").is_success
    async with open_tab(browser, keyed.corral.url, allowed=REFUSED, width=width) as tab:
        await open_view(tab, keyed.admin, "audit")
        rows = tab.page.get_by_role("row")
        await expect(rows).to_have_count(51)
        await expect(rows.nth(1)).to_contain_text(f"LimitService/DeleteLimitaudit-{width}-27")
        await tab.page.get_by_role("button", name="Show more").click()
        await expect(rows.nth(56)).to_contain_text(f"LimitService/CreateLimitaudit-{width}-0")
        await tab.page.get_by_label("Object").fill(f"audit-{width}-3")
        await tab.page.keyboard.press("Enter")
        await expect(rows).to_have_count(3)
        await rows.nth(2).locator("summary").click()
        await expect(rows.nth(2)).to_contain_text('"amount": "1000000"')
        assert await tab.overflow() == 0


@needs_chromium
async def test_a_model_is_loaded_and_unloaded(browser: Browser, keyed: Keyed) -> None:
    """Its state is followed while it changes."""
    async with open_tab(browser, keyed.corral.url, allowed=REFUSED) as tab:
        await open_view(tab, keyed.admin, "models")
        row = tab.page.get_by_role("row").filter(has_text=SECOND)
        await expect(row).to_contain_text("available")
        await row.get_by_role("button", name="Load", exact=True).click()
        await expect(row).to_contain_text("ready", timeout=50_000)
        tab.page.once("dialog", lambda dialog: dialog.accept())
        await row.get_by_role("button", name="Unload").click()
        await expect(row).to_contain_text("available", timeout=50_000)


@needs_chromium
async def test_a_download_is_followed(browser: Browser, keyed: Keyed) -> None:
    """With a bar for the file; the model can be loaded and explained when it is here."""
    gate = keyed.hub.gate = threading.Event()
    with keyed.http(keyed.admin) as client:
        pull = {"model": keyed.hub.url(DOWNLOAD)}
        with client.stream("POST", "/api/pull", json=pull) as answer:
            next(answer.iter_lines())
        async with open_tab(browser, keyed.corral.url, allowed=REFUSED) as tab:
            await open_view(tab, keyed.admin, "models")
            row = tab.page.get_by_role("row").filter(has_text="third-Q8_0")
            await expect(row).to_contain_text("downloading")
            bar = row.get_by_role("progressbar", name=DOWNLOAD)
            await expect(bar).to_have_js_property("max", BUNDLED_PATH.stat().st_size)
            buttons = row.get_by_role("button")
            for button in (buttons.first, buttons.last):
                await expect(button).to_be_disabled()
            gate.set()
            await expect(row).to_contain_text("available")
            for button in (buttons.first, buttons.last):
                await expect(button).to_be_enabled()
        assert client.request("DELETE", "/api/delete", json={"model": "third-Q8_0"}).is_success


@needs_chromium
@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_a_model_is_explained(browser: Browser, keyed: Keyed, width: int) -> None:
    """Loaded or not, with the sections of the command; another model replaces the explanation."""
    async with open_tab(browser, keyed.corral.url, allowed=REFUSED, width=width) as tab:
        await open_view(tab, keyed.admin, "models")
        await tab.page.get_by_role("button", name=f"Explain {MODEL}").click()
        section = tab.page.get_by_role("region", name=f"Explanation of {MODEL}")
        titles = section.get_by_role("heading", level=3)
        sections = ["model", "memory", "vocabulary", "sampling", "template", "beside", "unsure"]
        await expect(titles).to_have_text(sections)
        for fact in ("architecturellama", "tool callshermes", "slots2", "fitsyes"):
            await expect(section).to_contain_text(fact)
        await tab.page.get_by_role("button", name=f"Explain {SECOND}").click()
        other = tab.page.get_by_role("region", name=f"Explanation of {SECOND}")
        await expect(other).to_contain_text("context tokens512")
        await expect(section).to_have_count(0)
        assert await tab.overflow() == 0


@needs_chromium
async def test_load_and_usage_are_shown(browser: Browser, keyed: Keyed) -> None:
    """A running request is in a slot, counts tokens, and can be aborted; then it is usage."""
    async with open_tab(browser, keyed.corral.url, allowed=REFUSED) as tab:
        await open_view(tab, keyed.admin, "chat")
        await tab.page.get_by_label("Other fields").fill('{"ignore_eos": true}')
        await tab.page.get_by_label("Model", exact=True).select_option(MODEL)
        await tab.page.get_by_role("textbox", name="Message", exact=True).fill(CAPITAL)
        await tab.page.keyboard.press("Enter")
        await tab.page.locator(".message.model .markdown").wait_for()
        await tab.page.get_by_role("link", name="Load", exact=True).click()
        requests = tab.page.get_by_role("region", name="Requests")
        await expect(requests).to_contain_text("decode")
        await expect(tab.page.get_by_role("progressbar", name="Slots")).to_have_js_property(
            "value", 1
        )
        plot = tab.page.get_by_role("img", name="Generated tokens a second")
        await expect(plot).to_have_attribute("aria-label", re.compile(r"now [1-9]"))
        tab.page.once("dialog", lambda dialog: dialog.accept())
        await requests.get_by_role("button", name="Abort").click()
        await expect(tab.page.get_by_text("Nothing runs or waits.")).to_be_visible()
        await tab.page.get_by_role("link", name="Usage").click()
        table = tab.page.get_by_role("region", name="Usage by project and model")
        await expect(table).to_contain_text(MODEL)
        plot = tab.page.get_by_role("img", name="Completion tokens")
        await expect(plot).to_have_attribute("aria-label", re.compile(r": [1-9]"))


@needs_chromium
async def test_sessions_are_shown_to_a_key_without_scope_admin(
    browser: Browser, keyed: Keyed
) -> None:
    """Those of its project."""
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
    with keyed.http(keyed.plain) as client:
        assert client.post("/v1/completions", json=body).is_success
    async with open_tab(browser, keyed.corral.url, allowed=REFUSED) as tab:
        await open_view(tab, keyed.plain, "sessions")
        sessions = tab.page.get_by_role("region", name="Sessions").get_by_role("row")
        await expect(sessions.filter(has_text=MODEL).first).to_be_visible()
        await expect(tab.page.get_by_role("alert")).to_have_count(0)


@needs_chromium
async def test_a_limit_is_created_and_deleted(browser: Browser, keyed: Keyed) -> None:
    """With its amount, unit and period."""
    async with open_tab(browser, keyed.corral.url, allowed=REFUSED) as tab:
        await open_view(tab, keyed.admin, "limits")
        await tab.page.get_by_text("New limit").click()
        form = tab.page.get_by_role("form", name="New limit")
        await form.get_by_label("Id").fill("burst")
        await form.get_by_label("Amount", exact=True).fill("100000")
        await form.get_by_label("Unit").select_option("tokens")
        await form.get_by_role("button", name="Create").click()
        limits = tab.page.get_by_role("region", name="Limits")
        row = limits.get_by_role("row").filter(has_text="burst")
        await expect(row).to_contain_text("100,000")
        await expect(row).to_contain_text("tokens a minute")
        tab.page.once("dialog", lambda dialog: dialog.accept())
        await row.get_by_role("button", name="Delete").click()
        await expect(tab.page.get_by_text("There are no limits.")).to_be_visible()


@needs_chromium
@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_what_limits_have_left_is_shown(browser: Browser, keyed: Keyed, width: int) -> None:
    """For each key what is used of its amount, as a bar with a name and as text, and the reset; a
    cost is in the currency."""
    name = f"calls-{width}"
    limits = [
        {"id": name, "unit": "UNIT_REQUESTS", "amount": 1000, "per": ["SUBJECT_KEY"]},
        {"id": f"{name}-spend", "unit": "UNIT_COST", "amount": 2_500_000_000},
    ]
    with keyed.http(keyed.admin) as client:
        for limit in limits:
            body = {"limit": limit | {"period": "PERIOD_DAY"}}
            assert client.post("/admin/limits", json=body).is_success
        async with open_tab(browser, keyed.corral.url, allowed=REFUSED, width=width) as tab:
            await open_view(tab, keyed.admin, "limits")
            rows = tab.page.get_by_role("region", name="What is left").get_by_role("row")
            await expect(rows.filter(has_text=f"{name}-spend")).to_contain_text("0 of 2.5")
            with keyed.http(keyed.plain) as caller:
                completion = {"model": MODEL, "prompt": "a", "max_tokens": 1}
                told = ""
                while name not in told:
                    answer = caller.post("/v1/completions", json=completion)
                    told = answer.headers.get("ratelimit", "")
            row = rows.filter(has_text="key_")
            await expect(row).to_contain_text(re.compile(r"[1-9]\d* of 1,000"))
            bar = row.get_by_role("progressbar", name=re.compile(f"{name} for key_.*used or held"))
            assert await bar.evaluate("bar => bar.max === 1000 && bar.value >= 1")
            midnight = datetime.now(UTC).date() + timedelta(days=1)
            reset = row.locator("time")
            await expect(reset).to_have_attribute("datetime", f"{midnight}T00:00:00.000Z")
            assert await tab.overflow() == 0
        for limit in limits:
            assert client.delete(f"/admin/limits/{limit['id']}").is_success


@needs_chromium
async def test_a_key_without_admin_sees_why(browser: Browser, keyed: Keyed) -> None:
    """The view names the scope; the chat works."""
    async with open_tab(browser, keyed.corral.url, allowed=REFUSED) as tab:
        await open_view(tab, keyed.plain, "keys")
        await expect(tab.page.get_by_role("alert")).to_contain_text("scope admin")
        await tab.page.get_by_role("link", name="Chat").click()
        await expect(tab.page.get_by_label("Model", exact=True)).to_have_value(MODEL)


OPEN_TO_INFERENCE = {
    ("GET", "/admin/models"): 200,
    ("GET", "/admin/requests"): 200,  # of its own project
    ("GET", "/admin/sessions"): 200,  # likewise
    ("POST", "/admin/requests/abort"): 400,  # likewise; the body is missing
}


async def test_every_admin_route_needs_the_scope(keyed: Keyed) -> None:
    """That of its gRPC method: 403 with a key of scope inference unless it suffices there, 401
    without a key, before the body is read."""
    with keyed.http() as nobody, keyed.http(keyed.plain) as plain:
        paths = nobody.get("/openapi.json").json()["paths"]
        calls = [
            (verb.upper(), path.replace("{", "").replace("}", ""))
            for path, verbs in paths.items()
            if path.startswith("/admin/")
            for verb in verbs
        ]
        answers = {
            (verb, path, client.request(verb, path).status_code)
            for client in (nobody, plain)
            for verb, path in calls
        }

    assert len(calls) >= 16
    refused = {(*call, status) for call in calls for status in (401, 403)}
    assert answers ^ refused == {
        (*call, status)
        for call, open_status in OPEN_TO_INFERENCE.items()
        for status in (403, open_status)
    }


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/admin/keys", {"nmae": "x"}, "nmae"),
        ("/admin/keys", {"name": ""}, "name"),
        ("/admin/limits", {"limit": {"id": "x", "unit": "UNIT_BANANAS"}}, "unit"),
        ("/admin/models/load", {"model": "none"}, None),
    ],
)
async def test_a_wrong_body_is_refused(
    keyed: Keyed, path: str, body: object, param: str | None
) -> None:
    """With OpenAI's envelope, and the name of the field."""
    with keyed.http(keyed.admin) as client:
        answer = client.post(path, json=body)

    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] in (param, "model")
