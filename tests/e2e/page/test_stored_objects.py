"""The views of stored objects: the main act of each, in Chromium with the demo model."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Dialog, Locator, Page, Route, expect

from tests.support.browser import Tab, in_both_browsers, needs_chromium, open_tab
from tests.support.chat_page import answers, ask_and_wait, open_chat
from tests.support.minilm import minilm_path
from tests.support.rpc import CAPITAL
from tests.support.sdk import WEATHER
from tests.support.services import MODEL, Corral, corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), needs_chromium]


@pytest.fixture(scope="module")
def searchable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    folder = tmp_path_factory.mktemp("searchable")
    with corral_up(folder, "--embedding-model", f"minilm={minilm_path()}") as corral:
        yield corral


async def open_form(page: Page, name: str) -> Locator:
    """Unfold the form of a view, by its summary."""
    await page.get_by_text(name, exact=True).first.click()
    return page.get_by_role("form", name=name)


@pytest_asyncio.fixture(loop_scope="module")
async def api(searchable: Corral) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=searchable.api, trust_env=False, timeout=60) as client:
        yield client


async def create_assistant(tab: Tab, name: str, *tools: object) -> None:
    await tab.go("assistants")
    form = await open_form(tab.page, "New assistant")
    await form.get_by_label("Name").fill(name)
    await form.get_by_label("Model").select_option(MODEL)
    await form.get_by_label("Tools").fill(json.dumps(tools))
    await form.get_by_role("button", name="Create").click()
    await expect(tab.page.get_by_role("cell", name=name, exact=True)).to_be_visible()


async def test_a_chat_is_stored_and_continued(tab: Tab) -> None:
    """The conversation has the chat's messages; an answer in it streams in and is stored."""
    await tab.go("chat")
    await tab.page.get_by_role("combobox", name="Model").select_option(MODEL)
    await tab.page.get_by_label("Temperature").fill("0")
    await tab.page.get_by_role("textbox", name="Message", exact=True).fill(CAPITAL)
    await tab.page.keyboard.press("Enter")
    await expect(tab.page.get_by_role("button", name="Regenerate")).to_be_visible()
    await tab.page.get_by_role("button", name="Store as a conversation").click()
    items = tab.page.get_by_role("log", name="Items")
    await expect(items.get_by_role("article", name="Model")).to_contain_text("Paris")
    await tab.page.get_by_role("textbox", name="Message").fill("And what is the capital of Italy?")
    await tab.page.get_by_role("combobox", name="Model").select_option(MODEL)
    await tab.page.get_by_role("button", name="Send").click()

    await expect(items.get_by_role("article", name="Model")).to_have_count(2)
    await expect(tab.page.get_by_role("textbox", name="Message")).to_have_value("")
    await tab.page.reload()
    await expect(items.get_by_role("article")).to_have_count(4)
    await tab.go("conversations")
    await expect(tab.page.get_by_role("link", name=CAPITAL).first).to_be_visible()


async def test_a_response_runs_in_the_background(tab: Tab) -> None:
    """Its page follows it to its end; the list has it."""
    await tab.go("responses")
    form = await open_form(tab.page, "New response")
    await form.get_by_label("Input").fill(CAPITAL)
    await form.get_by_label("Model").select_option(MODEL)
    await form.get_by_role("button", name="Start in the background").click()

    output = tab.page.get_by_role("group", name="Output")
    await expect(output.get_by_role("article", name="Model")).to_be_visible()
    await expect(tab.page.get_by_text("completed", exact=True)).to_be_visible()
    await expect(tab.page.get_by_role("log", name="Input")).to_contain_text(CAPITAL)
    await tab.page.get_by_role("link", name="All responses").click()
    await expect(tab.page.get_by_role("region", name="Responses")).to_contain_text("completed")


@in_both_browsers
async def test_a_run_shows_its_steps(tab: Tab, browser: Browser) -> None:
    """A run waits for the output of a tool, continues with it, and ends with a message."""
    assistant = f"Forecaster in {browser.browser_type.name}"
    await create_assistant(tab, assistant, WEATHER)
    await tab.go("threads")
    await tab.page.get_by_role("button", name="New thread").click()
    form = tab.page.get_by_role("form", name="Run")
    await form.get_by_label("Assistant").select_option(assistant)
    await form.get_by_label("Message").fill("What is the weather in Paris?")
    await form.get_by_role("button", name="Add and run").click()
    outputs = tab.page.get_by_role("form", name="Outputs of tools")
    await outputs.get_by_label("Output of get_weather").fill('{"weather": "sunny"}')
    run = tab.page.get_by_role("region", name="Current run")
    await expect(run.get_by_role("list", name="Steps")).to_contain_text("get_weather")
    await outputs.get_by_role("button", name="Send the outputs").click()

    await expect(run.get_by_text("completed").first).to_be_visible()
    await expect(tab.page.get_by_role("article", name="Model")).to_be_visible()
    await expect(run.get_by_role("listitem")).to_have_count(2)
    runs = tab.page.get_by_role("region", name="Runs")
    await expect(runs).to_contain_text("completed")


async def test_the_chat_searches_a_store_by_itself(
    browser: Browser, searchable: Corral, tmp_path: Path
) -> None:
    """The server runs the search, and the answer says what was searched for."""
    async with searchable.sdk() as client:
        store = await client.vector_stores.create(name="Rules")
        text = b"Every employee has thirty days of paid leave each year."
        await client.vector_stores.files.upload_and_poll(
            vector_store_id=store.id, file=("leave.txt", text)
        )
    async with open_tab(browser, searchable.url) as tab:
        await open_chat(tab)
        await tab.page.get_by_text("Tools of the server").click()
        await tab.page.get_by_label("Search in").select_option("Rules")
        choice = {"tool_choice": {"type": "file_search"}}
        await tab.page.get_by_label("Other fields").fill(json.dumps(choice))
        async with tab.sends("**/v1/responses") as body:
            # With another question the greedy model writes a query without an end.
            await ask_and_wait(tab, "What is the weather in Berlin?")

        assert body["tools"] == [{"type": "file_search", "vector_store_ids": [store.id]}]
        await expect(answers(tab)).to_contain_text("Searched:")
        await expect(answers(tab)).to_contain_text("tokens")
        await ask_and_wait(tab, CAPITAL)
        await expect(answers(tab)).to_have_count(2)


async def test_a_form_can_be_sent_again(
    browser: Browser, searchable: Corral, api: httpx.AsyncClient
) -> None:
    """Numbers have their defaults then, and what was chosen from a list stays."""
    async with open_tab(browser, searchable.url) as tab:
        store = (await api.post("/vector_stores", json={"name": "Empty"})).json()["id"]
        await tab.go(f"vector-stores/{store}")
        form = tab.page.get_by_role("form", name="Search")
        for query in ("first", "second"):
            async with tab.sends(f"**/vector_stores/{store}/search") as body:
                await form.get_by_label("Query").fill(query)
                await form.get_by_role("button", name="Search").click()
            assert body == {"query": query, "max_num_results": 5}
            await expect(form.get_by_label("Query")).to_have_value("")
        for name in ("One", "Two"):
            await api.post("/assistants", json={"model": MODEL, "name": name})
        await tab.go(f"threads/{(await api.post('/threads', json={})).json()['id']}")
        form = tab.page.get_by_role("form", name="Run")
        await form.get_by_label("Assistant").select_option("Two")
        await form.get_by_label("Message").fill(CAPITAL)
        await form.get_by_role("button", name="Add and run").click()
        await expect(form.get_by_label("Message")).to_have_value("")

        await expect(form.get_by_label("Assistant").locator("option:checked")).to_have_text("Two")


async def test_an_assistant_is_edited_whole(browser: Browser, searchable: Corral) -> None:
    """Its functions and vector stores too; nothing else changes, however often it is saved."""
    async with httpx.AsyncClient(base_url=searchable.api, trust_env=False) as client:
        store = (await client.post("/vector_stores", json={"name": "Shelf"})).json()["id"]
        body = {"model": MODEL, "name": "Clerk", "instructions": "Be brief.", "temperature": 0.25}
        created = (await client.post("/assistants", json=body)).json()["id"]
        async with open_tab(browser, searchable.url) as tab:
            await tab.go(f"assistants/{created}")
            form = tab.page.get_by_role("form", name="Assistant")
            await form.get_by_label("Tools").fill(json.dumps([WEATHER]))
            await form.get_by_label("Shelf").check()
            await form.get_by_role("button", name="Save").click()
            await expect(tab.page.get_by_text("Saved.")).to_be_visible()
            await expect(form.get_by_label("Instructions")).to_have_value("Be brief.")
            await expect(form.get_by_label("Shelf")).to_be_checked()
            async with tab.page.expect_response(f"**/assistants/{created}"):
                await form.get_by_role("button", name="Save").click()
            await tab.page.route("**/v1/vector_stores*", lambda route: route.abort())
            tab.allowed = ("Failed to load resource: net::ERR_FAILED",)
            await tab.page.reload()
            await expect(form.get_by_label(store)).to_be_checked()
            await expect(form.get_by_label("Tools")).to_have_value(re.compile("file_search"))
            async with tab.page.expect_response(f"**/assistants/{created}"):
                await form.get_by_role("button", name="Save").click()
        changed = (await client.get(f"/assistants/{created}")).json()

    assert {name: changed[name] for name in body} == body
    assert [tool["type"] for tool in changed["tools"]] == ["function", "file_search"]
    assert changed["tool_resources"]["file_search"]["vector_store_ids"] == [store]


async def test_a_conversation_that_is_left_is_followed_no_more(tab: Tab, server: Corral) -> None:
    async with httpx.AsyncClient(base_url=server.api, trust_env=False) as client:
        created = (await client.post("/conversations", json={"items": []})).json()["id"]
    await tab.go(f"conversations/{created}")
    await tab.page.route("**/v1/responses", lambda _: None)  # waits for ever
    form = tab.page.get_by_role("form", name="Continue")
    await form.get_by_label("Message").fill("Tell me a story about a fox.")
    async with tab.page.expect_request("**/v1/responses"):
        await form.get_by_role("button", name="Send").click()
    async with tab.page.expect_event("requestfailed") as ended:
        await tab.page.get_by_role("link", name="All conversations").click()

    assert (await ended.value).url == f"{server.api}/responses"


@pytest.mark.parametrize(
    ("view", "name", "submit", "pattern", "label"),
    [
        ("responses", "New response", "Start in the background", "**/v1/models", "Model"),
        ("keys", "New key", "Create", "**/admin/projects*", "Project"),
    ],
)
async def test_a_form_waits_for_what_it_offers(
    tab: Tab, view: str, name: str, submit: str, pattern: str, label: str
) -> None:
    """Until then nothing, or something else, would be chosen; if it cannot be read, it says why."""
    asked: asyncio.Queue[Route] = asyncio.Queue()
    await tab.page.route(pattern, asked.put)
    await tab.go(view)
    form = await open_form(tab.page, name)
    send = form.get_by_role("button", name=submit)
    route = await asked.get()
    await expect(send).to_be_disabled()
    await route.continue_()
    await expect(send).to_be_enabled()
    await expect(form.get_by_label(label)).to_have_value(re.compile("."))

    tab.allowed = ("Failed to load resource",)
    await tab.page.reload()
    await (await asked.get()).fulfill(status=503, json={"error": {"message": "It is away."}})
    form = await open_form(tab.page, name)
    await expect(form.get_by_text("It is away.")).to_be_visible()


async def test_a_conversation_is_saved_and_read_again(
    tab: Tab, server: Corral, tmp_path: Path
) -> None:
    """As JSON with all items, and as Markdown for people."""
    items = [
        {"type": "message", "role": "user", "content": f"question {number}"} for number in range(19)
    ]
    items += [{"type": "message", "role": "assistant", "content": "the answer"}] * 60
    async with httpx.AsyncClient(base_url=server.api, trust_env=False) as client:
        created = (await client.post("/conversations", json={"items": items[:19]})).json()["id"]
        for at in range(19, len(items), 20):
            more = {"items": items[at : at + 20]}
            await client.post(f"/conversations/{created}/items", json=more)
        await tab.go(f"conversations/{created}")
        for kind in ("JSON", "Markdown"):
            async with tab.page.expect_download() as started:
                await tab.page.get_by_role("button", name=f"Save as {kind}").click()
            await (await started.value).save_as(tmp_path / kind)
        await tab.go("conversations")
        form = await open_form(tab.page, "New conversation")
        await form.get_by_label("Items").set_input_files(tmp_path / "JSON")
        await form.get_by_role("button", name="Create").click()
        await expect(tab.page.get_by_text("the answer").last).to_be_visible()
        copy = tab.page.url.rpartition("/")[2]
        url = f"/conversations/{copy}/items?limit=100"
        copied = (await client.get(url)).json()["data"]

    assert copy != created
    assert len(copied) == len(items)
    assert (tmp_path / "Markdown").read_text().count("## User\n\nquestion") == 19


async def test_a_thread_is_saved_and_read_again(tab: Tab, server: Corral, tmp_path: Path) -> None:
    """As JSON with all messages, more than a new thread may begin with."""
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": f"message {number}"}
        for number in range(40)
    ]
    async with httpx.AsyncClient(base_url=server.api, trust_env=False) as client:
        created = (await client.post("/threads", json={"messages": messages[:32]})).json()["id"]
        for message in messages[32:]:
            await client.post(f"/threads/{created}/messages", json=message)
        await tab.go(f"threads/{created}")
        async with tab.page.expect_download() as started:
            await tab.page.get_by_role("button", name="Save as JSON").click()
        await (await started.value).save_as(tmp_path / "thread.json")
        await tab.go("threads")
        form = tab.page.get_by_role("form", name="New thread")
        await form.get_by_label("Messages").set_input_files(tmp_path / "thread.json")
        await form.get_by_role("button", name="New thread").click()
        await expect(tab.page.get_by_text("message 39", exact=True)).to_be_visible()
        copy = tab.page.url.rpartition("/")[2]
        url = f"/threads/{copy}/messages?order=asc&limit=100"
        copied = (await client.get(url)).json()["data"]

    assert copy != created
    assert [
        {"role": each["role"], "content": each["content"][0]["text"]["value"]} for each in copied
    ] == messages


@pytest.mark.parametrize("kind", ["conversations", "responses", "threads", "vector_stores"])
async def test_a_question_before_a_deletion_names_what_is_lost(
    tab: Tab, server: Corral, kind: str
) -> None:
    body = {"model": MODEL, "input": "Hello!", "max_output_tokens": 1}
    async with httpx.AsyncClient(base_url=server.api, trust_env=False) as client:
        answer = await client.post(f"/{kind}", json=body if kind == "responses" else {})
        created = answer.raise_for_status().json()["id"]
    asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def accept(dialog: Dialog) -> None:
        asked.set_result(dialog.message)
        await dialog.accept()

    await tab.go(kind.replace("_", "-"))
    row = tab.page.get_by_role("row").filter(has_text=created)
    tab.page.once("dialog", accept)
    await row.get_by_role("button", name="Delete").click()

    assert created in await asked
    await expect(row).to_have_count(0)


async def test_a_conversation_is_stored_whole_or_not_at_all(
    tab: Tab, server: Corral, tmp_path: Path
) -> None:
    """What came before a failure is deleted; where that fails too, it is said what is left."""
    items = [{"type": "message", "role": "user", "content": "question"}] * 21
    (tmp_path / "items.json").write_text(json.dumps(items))
    tab.allowed = ("Failed to load resource",)
    await tab.page.route("**/v1/conversations/*/items", lambda route: route.abort())
    await tab.go("conversations")
    form = await open_form(tab.page, "New conversation")
    async with httpx.AsyncClient(base_url=server.api, trust_env=False) as client:
        await form.get_by_label("Title").fill("Half")
        for is_there in (True, False):
            if not is_there:
                await tab.page.route("**/v1/conversations/conv_*", lambda route: route.abort())
            await form.get_by_label("Items").set_input_files(tmp_path / "items.json")
            await form.get_by_role("button", name="Create").click()
            told = re.compile(
                "cannot be reached.$" if is_there else "A part of it is stored as conv_"
            )
            await expect(form.get_by_role("alert")).to_have_text(told)
            listed = (await client.get("/conversations?limit=100")).json()["data"]
            titles = [each["metadata"].get("title") for each in listed]
            assert titles.count("Half") == (not is_there)


async def test_a_file_is_stored_and_downloaded(tab: Tab, tmp_path: Path) -> None:
    """With its name, and deleted after a question."""
    path = tmp_path / "notes-of-the-page.txt"
    path.write_text("Some notes.")
    await tab.go("files")
    form = await open_form(tab.page, "Store a file")
    await form.get_by_label("File").set_input_files(path)
    await form.get_by_label("Purpose").select_option("user_data")
    await form.get_by_role("button", name="Store").click()
    row = tab.page.get_by_role("row").filter(has_text=path.name)
    await expect(row).to_contain_text("11 B")
    async with tab.page.expect_download() as started:
        await row.get_by_role("button", name="Download").click()
    download = await started.value

    assert download.suggested_filename == path.name
    await download.save_as(tmp_path / "copy.txt")
    assert (tmp_path / "copy.txt").read_text() == "Some notes."
    tab.page.once("dialog", lambda dialog: dialog.accept())
    await row.get_by_role("button", name="Delete").click()
    await expect(row).to_have_count(0)


async def test_a_batch_shows_its_progress(tab: Tab, tmp_path: Path) -> None:
    """From its file to the download of its results."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": CAPITAL}], "max_tokens": 8}
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for n in range(3)
    ]
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    await tab.go("batches")
    form = await open_form(tab.page, "New batch")
    await form.get_by_label("File").set_input_files(path)
    await form.get_by_role("button", name="Start").click()
    row = tab.page.get_by_role("row").nth(1)
    await expect(row.get_by_role("progressbar", name="Lines")).to_be_visible()

    await expect(row).to_contain_text("completed")
    await expect(row).to_contain_text("3 of 3")
    async with tab.page.expect_download() as started:
        await row.get_by_role("button", name="Output").click()
    await (await started.value).save_as(tmp_path / "output.jsonl")
    assert len((tmp_path / "output.jsonl").read_text().splitlines()) == 3


async def test_an_error_of_the_server_is_shown_in_the_form(tab: Tab) -> None:
    """The message names the field; what was entered stays."""
    tab.allowed = ("Failed to load resource: the server responded with a status of 400",)
    await create_assistant(tab, "Valid")
    form = tab.page.get_by_role("form", name="New assistant")
    await form.get_by_label("Name").fill("Invalid")
    await form.get_by_label("Tools").fill('[{"type": "unknown"}]')
    await form.get_by_role("button", name="Create").click()

    await expect(form.get_by_role("alert")).to_contain_text("tools[0].type")
    await expect(form.get_by_label("Name")).to_have_value("Invalid")


async def test_a_vector_store_is_filled_and_searched(
    browser: Browser, searchable: Corral, tmp_path: Path
) -> None:
    """A file is embedded, and found by its meaning."""
    path = tmp_path / "leave.txt"
    path.write_text("Every employee has thirty days of paid leave each year.")
    async with open_tab(browser, searchable.url) as tab:
        await tab.go("vector-stores")
        form = await open_form(tab.page, "New vector store")
        await form.get_by_label("Name").fill("Handbook")
        await form.get_by_role("button", name="Create").click()
        await expect(tab.page.get_by_role("heading", name="Handbook")).to_be_visible()
        adding = tab.page.get_by_role("form", name="Add a file")
        await adding.get_by_label("File", exact=True).set_input_files(path)
        await tab.page.get_by_role("button", name="Add", exact=True).click()
        files = tab.page.get_by_role("region", name="Files of the store")
        await expect(files.get_by_text("completed")).to_be_visible()
        await tab.page.get_by_label("Query").fill("How much holiday do I get?")
        await tab.page.get_by_role("button", name="Search").click()

        results = tab.page.get_by_role("list", name="Results")
        await expect(results).to_contain_text("leave.txt")
        await expect(results).to_contain_text("thirty days")
