"""The page in Chromium: its first paint from loopback, its bytes, and what a long chat costs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from playwright.async_api import Browser, CDPSession, FilePayload, Page

from bench.contest import alternate
from bench.measurement import CORRAL, Measurement, Result, compare, median, values_by_round
from bench.paths import BUNDLED_MODEL
from bench.servers import EngineShape, Server
from bench.stage import Part, Stage
from tests.support.browser import CHROMIUM, run_browser

PAINT, BYTES, STREAM = "first contentful paint", "bytes before it", "100 pieces of an answer"
MAX_PAINT_MS, MAX_KB, MAX_STREAM_COST = 1000.0, 400.0, 1.2
LONG, NEW = CORRAL, "a new chat"
MESSAGES, PIECES = 2000, 100
SHAPE: Final = EngineShape(BUNDLED_MODEL, slots=1, context_tokens=1024, threads=1)


class Sizes(NamedTuple):
    """Cold loads of the page, and answers in each chat."""

    loads: int
    answers: int


FULL, QUICK = Sizes(15, 7), Sizes(2, 1)
READ_ENTRIES = """() => {
  const all = type => performance.getEntriesByType(type);
  const paint = all("paint").find(({ name }) => name === "first-contentful-paint");
  const bytes = [...all("navigation"), ...all("resource")].map(each => each.transferSize);
  return [paint.startTime, bytes.reduce((sum, each) => sum + each) / 1000];
}"""
STREAM_PIECES = """
const fetchOthers = window.fetch;
window.fetch = async (url, options) => {
  if (!String(url).endsWith("/v1/chat/completions")) return fetchOthers(url, options);
  const piece = JSON.stringify({ choices: [{ delta: { content: "**word** " } }] });
  let left = PIECES;
  const body = new ReadableStream({ async pull(controller) {
    await new Promise(requestAnimationFrame);
    controller.enqueue(new TextEncoder().encode(`data: ${left-- ? piece : "[DONE]"}\\n\\n`));
  } });
  return new Response(body, { headers: { "content-type": "text/event-stream" } });
};
"""
"""Answers of `PIECES` pieces, one in each frame, so that no server's speed matters."""


def measure(stage: Stage) -> Iterator[Measurement]:
    """Load the page without a cache; then stream answers behind many messages and behind none.

    Yields nothing where Chromium is not installed.
    """
    if CHROMIUM is None:
        return
    sizes = stage.sizes(FULL, QUICK)
    with stage.corral(SHAPE) as server:
        yield from stage.runner.run(_load(server, stage.rounds or sizes.loads))
        yield from stage.runner.run(_stream(server, stage.rounds or sizes.answers))


async def _load(server: Server, loads: int) -> list[Measurement]:
    found = []
    async with run_browser() as browser:
        await _open(browser, server)  # programs and files are in memory then
        for number in range(loads):
            page = await _open(browser, server)
            paint_ms, kilobytes = await page.evaluate(READ_ENTRIES)
            found.append(Measurement(PAINT, number, CORRAL, paint_ms))
            found.append(Measurement(BYTES, number, CORRAL, kilobytes))
            await page.context.close()
    return found


async def _stream(server: Server, answers: int) -> list[Measurement]:
    found = []
    script = STREAM_PIECES.replace("PIECES", str(PIECES))
    async with run_browser() as browser:
        chats = {name: await _open(browser, server, script) for name in (LONG, NEW)}
        await _open_messages(chats[LONG])
        clocks = {name: await _thread_clock(page) for name, page in chats.items()}
        for number in range(answers + 1):
            for name in alternate([*chats], number):
                before = await _computed_ms(clocks[name])
                await _ask(chats[name])
                cost_ms = await _computed_ms(clocks[name]) - before
                if number:  # the first answer compiles what the others run
                    found.append(Measurement(STREAM, number - 1, name, cost_ms))
    return found


async def _open(browser: Browser, server: Server, script: str = "") -> Page:
    """The chat in a window with nothing in its cache, once it can be used."""
    context = await browser.new_context(viewport={"width": 1400, "height": 900})
    await context.add_init_script(script)
    page = await context.new_page()
    await page.goto(f"{server.url}/ui/")
    await page.get_by_text("Ask ").wait_for()
    return page


async def _thread_clock(page: Page) -> CDPSession:
    clock = await page.context.new_cdp_session(page)
    await clock.send("Performance.enable", {"timeDomain": "threadTicks"})
    return clock


async def _open_messages(page: Page) -> None:
    """Open a file with `MESSAGES` messages in the chat."""
    items = [
        {"type": "message", "role": role, "content": [{"type": f"{way}_text", "text": "Text."}]}
        for _ in range(MESSAGES // 2)
        for role, way in (("user", "input"), ("assistant", "output"))
    ]
    body = json.dumps(items).encode()
    file = FilePayload(name="long.json", mimeType="application/json", buffer=body)
    await page.get_by_label("File of a chat").set_input_files(file)
    await page.get_by_role("link", name="long").wait_for()  # it is stored


async def _ask(page: Page) -> None:
    """Send a message, and wait until the answer is whole."""
    log = page.get_by_role("log")
    await page.get_by_role("textbox", name="Message", exact=True).fill("Tell me a story.")
    await page.keyboard.press("Enter")
    await log.and_(page.locator("[aria-busy=true]")).wait_for()
    await log.and_(page.locator("[aria-busy=false]")).wait_for()


async def _computed_ms(clock: CDPSession) -> float:
    metrics: dict[str, Any] = await clock.send("Performance.getMetrics")
    (seconds,) = [each["value"] for each in metrics["metrics"] if each["name"] == "TaskDuration"]
    return 1000 * float(seconds)


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare the first paint and its bytes with what is allowed, and a long chat with an empty
    one."""
    results = []
    for load, allowed, unit in ((PAINT, MAX_PAINT_MS, "ms"), (BYTES, MAX_KB, "KB")):
        values = [*values_by_round(measurements, load, CORRAL).values()]
        ratios = tuple(value / allowed for value in values)
        results.append(
            Result(load, ratios, 1.0, median(values), allowed, "allowed", unit, "at most")
        )
    label = f"{STREAM} behind {MESSAGES:,} messages"
    streamed = compare(measurements, STREAM, NEW, MAX_STREAM_COST, label, "ms")
    return [*results, replace(streamed, bound="at most")]


PART = Part(
    name="page",
    title="The page",
    text=(
        "The page in a headless Chromium on the same machine. The first contentful paint is that of"
        " the browser's own performance entries, from the request of the address, with nothing in"
        " the browser's cache; the bytes are all that came over the network until the chat could be"
        f" used. Then answers of {PIECES} pieces, one in each frame, in a chat of {MESSAGES:,}"
        " messages and in a new one: what the page's thread computed meanwhile."
    ),
    measure=measure,
    conclude=conclude,
)
