"""Works for chaos tests: chats, background responses, runs on threads, and batches."""

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import httpx

from tests.support.batches import CHAT, batch_line, jsonl
from tests.support.chaos import WorkCounter
from tests.support.history import PATIENCE_S, PAUSE_S, Client, History, Served, connect_client
from tests.support.pictures import circle_png, data_url
from tests.support.rpc import CAPITAL, PARIS
from tests.support.seam_cases import CHATS, Answer, answers, split
from tests.support.services import MODEL

_ASKED: Final[Mapping[str, Any]] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": CAPITAL}],
    "temperature": 0,
    "max_tokens": 64,
}
_LINES: Final = [batch_line(f"line-{number}", CHAT, **_ASKED) for number in range(12)]
_ENDS: Final = ("response.completed", "response.failed", "response.incomplete")
_BATCH_ENDS: Final = ("completed", "failed", "expired", "cancelled")
_ACTIVE: Final = ("queued", "in_progress", "cancelling", "requires_action")
WHOLE: Final = "whole"
NUM_THREADS: Final = 3
NUM_STARTERS: Final = 2
"""Clients that start runs on the same threads."""


class Chat(NamedTuple):
    """A request whose answer is streamed, and the field of each `Answer` that it is about."""

    path: str
    body: Mapping[str, Any]
    shows: str = "text"


@dataclass
class ChatWork:
    """Chats are answered as they would have been without faults, as far as they come."""

    history: History
    chats: Mapping[str, Chat] = field(default_factory=dict)
    """More than the one about France."""
    ends: Counter[str] = field(default_factory=Counter)
    """How many chats ended whole, and of the others why they did not."""

    def __post_init__(self) -> None:
        self.chats = {CAPITAL: Chat(CHATS, _ASKED), **self.chats}
        self._record("expected", f"text 0 of {CAPITAL}", split(PARIS), is_ended=True)

    async def run(self, served: Served, counter: WorkCounter, stop: asyncio.Event) -> None:
        """Send each chat in turns."""
        process = self.history.new_process("chats")
        async with connect_client(served) as client:
            while not stop.is_set():
                for name, chat in self.chats.items():
                    answered = await self._read(client, process, name, chat)
                    if answered is not None:
                        counter.add()

    async def record_twins(self, served: Served) -> None:
        """Send each chat once, while there are no faults."""
        async with connect_client(served) as client:
            for name, chat in self.chats.items():
                twins = await self._read(client, "undisturbed", name, chat)
                assert twins, name
                assert all(getattr(each, chat.shows) for each in twins), (name, twins)

    async def _read(
        self, client: Client, process: str, name: str, chat: Chat
    ) -> Sequence[Answer] | None:
        """Read a stream; return its choices if it ended as it should."""
        events: list[dict[str, Any]] = []
        end = ""
        try:
            sent = {**chat.body, "stream": True}
            async for data in client.events("POST", chat.path, json=sent):
                if data == "[DONE]":
                    end = end or WHOLE
                elif "error" not in (event := json.loads(data)):
                    events.append(event)
                else:
                    end = event["error"]["code"]
        except httpx.HTTPStatusError as error:
            end = f"HTTP {error.response.status_code}"
        except httpx.HTTPError as error:
            end = type(error).__name__
        self.ends[end or "no end"] += 1
        found, is_ended = answers(events), end == WHOLE
        if is_ended:
            self._record(
                process, f"choices of {name}", [str(each) for each in sorted(found)], is_ended=True
            )
        for index, answer in found.items():
            for kind, pieces in answer.pieces().items():
                self._record(process, f"{kind} {index} of {name}", pieces, is_ended=is_ended)
        if is_ended:
            return list(found.values())
        await asyncio.sleep(PAUSE_S)
        return None

    def _record(self, process: str, key: str, pieces: list[str], *, is_ended: bool) -> None:
        told = pieces if is_ended else pieces[:-1]  # the last one may be a part
        with self.history.operation(process, "follow", key) as pending:
            events = [list(each) for each in enumerate(told)]
            pending.told = {"after": -1, "events": events, "is_ended": is_ended}
            pending.outcome = "ok" if is_ended else "unknown"

    async def check(self, served: Served) -> None:
        """Nothing: the history has it."""


Question = tuple[Any, str]
"""The input of a response, and its answer."""


def picture_questions(rng: random.Random) -> Callable[[], Question]:
    """Questions about pictures, of which no two are equal: each has to be encoded."""

    def next_question() -> Question:
        color = rng.choice(("red", "green", "blue"))
        place = rng.randrange(6, 36, 3), rng.randrange(6, 36, 3)
        url = data_url(circle_png(color, place, corner=rng.randbytes(3)))
        content = [
            {"type": "input_image", "image_url": url, "detail": "auto"},
            {"type": "input_text", "text": "Which color is it?"},
        ]
        return [{"role": "user", "content": content}], color

    return next_question


@dataclass
class ResponseWork:
    """Background responses are completed with the right answer; all who follow one, at any gateway
    and later, get the same events."""

    history: History
    next_question: Callable[[], Question] = lambda: (CAPITAL, PARIS)
    _ids: list[str] = field(default_factory=list)

    async def run(self, served: Served, counter: WorkCounter, stop: asyncio.Event) -> None:
        """Create responses; two follow each to its end."""
        async with connect_client(served) as client, connect_client(served, 1) as other:
            processes = [self.history.new_process("responses") for _ in range(2)]
            while not stop.is_set():
                question, answer = self.next_question()
                body = {"model": MODEL, "input": question, "background": True}
                limits = {"temperature": 0, "max_output_tokens": 64}
                made = await client.post("responses", {**body, **limits})
                self._ids.append(made["id"])
                self.history.observe_text("expected", f"answer of {made['id']}", answer)
                async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as followers:
                    for each, process in zip((client, other), processes, strict=True):
                        followers.create_task(self._follow(each, process, made["id"]))
                counter.add()

    async def _follow(self, client: Client, process: str, response_id: str) -> None:
        """Read to the end, in as many operations as connections; record the text."""
        after, text, is_ended = -1, "", False
        while not is_ended:
            reading: dict[str, Any] = {"after": after, "events": [], "is_ended": False}
            with self.history.operation(process, "follow", response_id) as pending:
                pending.told = reading
                params = {"stream": "true"} | ({} if after < 0 else {"starting_after": after})
                with suppress(httpx.HTTPError):
                    path = f"responses/{response_id}"
                    async for data in client.events("GET", path, params=params):
                        event: dict[str, Any] = json.loads(data) if data != "[DONE]" else {}
                        if event.get("type", "error") == "error":  # it is not a stored event
                            continue
                        after = event["sequence_number"]
                        digest = hashlib.sha256(data.encode()).hexdigest()[:16]
                        reading["events"].append([after, f"{event['type']} {digest}"])
                        if event["type"] == "response.output_text.delta":
                            text += event["delta"]
                        is_ended = reading["is_ended"] = event["type"] in _ENDS
                if not is_ended:
                    pending.outcome = "unknown"
                    await asyncio.sleep(PAUSE_S)
        self.history.observe_text(process, f"answer of {response_id}", text)

    async def check(self, served: Served) -> None:
        """The stored text and events are those that were streamed."""
        async with connect_client(served) as client:
            for response_id in self._ids:
                await self._follow(client, "afterwards", response_id)
                stored = await client.get(f"responses/{response_id}")
                assert stored["status"] == "completed", stored
                text = stored["output"][-1]["content"][0]["text"]
                self.history.observe_text("afterwards", f"answer of {response_id}", text)


@dataclass
class RunWork:
    """Runs that several clients start lock their thread, and each is completed with one message."""

    history: History
    rng: random.Random
    _threads: list[str] = field(default_factory=list)

    async def run(self, served: Served, counter: WorkCounter, stop: asyncio.Event) -> None:
        """Start runs on a few threads at random, and watch each."""
        async with connect_client(served) as client:
            assistant = await client.post("assistants", {"model": MODEL, "temperature": 0})
            while len(self._threads) < NUM_THREADS:
                made = await client.post("threads", {})
                self._threads.append(made["id"])
        async with asyncio.TaskGroup() as starters:
            for number in range(NUM_STARTERS):
                starting = self._start_runs(served, number, assistant["id"], counter, stop)
                starters.create_task(starting)

    async def _start_runs(
        self, served: Served, first: int, assistant: str, counter: WorkCounter, stop: asyncio.Event
    ) -> None:
        process = self.history.new_process("runs")
        async with connect_client(served, first) as client:
            while not stop.is_set():
                thread = self.rng.choice(self._threads)
                question = {"role": "user", "content": CAPITAL}
                body = {"assistant_id": assistant, "additional_messages": [question]}
                with self.history.operation(process, "start", thread) as started:
                    answer = await client.call("POST", f"threads/{thread}/runs", json=body)
                    if answer.status_code == httpx.codes.BAD_REQUEST:
                        assert "already has an active run" in answer.text
                        started.outcome = "failed"
                        continue
                    started.told = answer.raise_for_status().json()["id"]
                async with asyncio.timeout(PATIENCE_S):
                    await self._watch(client, process, thread, started.told)
                counter.add()

    async def _watch(self, client: Client, process: str, thread: str, run: str) -> None:
        """Ask until it has ended; record that its answer is there then."""
        status = "queued"
        while status in _ACTIVE:
            with self.history.operation(process, "check", thread) as checked:
                status = (await client.get(f"threads/{thread}/runs/{run}"))["status"]
                checked.told = {"run": run, "is_active": status in _ACTIVE}
            await asyncio.sleep(0.05)
        assert status == "completed", (run, status)
        self.history.observe(process, "create", f"answers in {thread}", [run])

    async def check(self, served: Served) -> None:
        """Each thread has one answer of each run."""
        async with connect_client(served) as client:
            for thread in self._threads:
                key = f"answers in {thread}"
                with self.history.operation("afterwards", "list", key) as listed:
                    messages = await client.pages(f"threads/{thread}/messages")
                    answered = [each for each in messages if each["role"] == "assistant"]
                    listed.told = [each["run_id"] for each in answered]
                for each in answered:
                    self.history.observe_text("expected", f"answer of {each['run_id']}", PARIS)
                    text = each["content"][0]["text"]["value"]
                    self.history.observe_text("afterwards", f"answer of {each['run_id']}", text)


@dataclass
class BatchWork:
    """Each line of a batch is answered once, rightly, and counted once; no batch is there twice."""

    history: History
    lines: Sequence[Mapping[str, Any]] = field(default_factory=lambda: _LINES)
    _batches: list[str] = field(default_factory=list)

    async def run(self, served: Served, counter: WorkCounter, stop: asyncio.Event) -> None:
        """Create batches, and wait for the end of each."""
        process = self.history.new_process("batches")
        names = [line["custom_id"] for line in self.lines]
        async with connect_client(served) as client:
            while not stop.is_set():
                upload = {"files": {"file": ("in.jsonl", jsonl(list(self.lines)))}}
                made = await client.call("POST", "files", data={"purpose": "batch"}, **upload)
                body = {"endpoint": CHAT, "completion_window": "24h"}
                file_id = made.raise_for_status().json()["id"]
                batch = await client.post("batches", {**body, "input_file_id": file_id})
                self._batches.append(batch["id"])
                self.history.observe(process, "create", "batches", [batch["id"]])
                self.history.observe(process, "create", f"lines of {batch['id']}", names)
                async with asyncio.timeout(PATIENCE_S):
                    while batch["status"] not in _BATCH_ENDS:
                        await asyncio.sleep(PAUSE_S)
                        batch = await client.get(f"batches/{batch['id']}")
                counter.add()

    async def check(self, served: Served) -> None:
        """The files of each batch have all its lines with their answers."""
        async with connect_client(served) as client:
            with self.history.operation("afterwards", "list", "batches") as listed:
                listed.told = [each["id"] for each in await client.pages("batches")]
            for batch_id in self._batches:
                await self._check_lines(client, batch_id)

    async def _check_lines(self, client: Client, batch_id: str) -> None:
        batch = await client.get(f"batches/{batch_id}")
        lines: list[dict[str, Any]] = []
        with self.history.operation("afterwards", "list", f"lines of {batch_id}") as listed:
            for name in ("output_file_id", "error_file_id"):
                if batch.get(name):
                    content = await client.call("GET", f"files/{batch[name]}/content")
                    lines += map(json.loads, content.raise_for_status().text.splitlines())
            listed.told = [line["custom_id"] for line in lines]
        assert batch["status"] == "completed", batch
        usages = []
        for line in lines:
            body = line["response"]["body"]
            usages.append(body["usage"])
            key = f"answer of {line['custom_id']} of {batch_id}"
            self.history.observe_text("expected", key, PARIS)
            self.history.observe_text("afterwards", key, body["choices"][0]["message"]["content"])
        counts, usage = batch["request_counts"], batch["usage"]
        assert counts == {"total": len(lines), "completed": len(lines), "failed": 0}
        assert usage["input_tokens"] == sum(each["prompt_tokens"] for each in usages)
        assert usage["output_tokens"] == sum(each["completion_tokens"] for each in usages)
