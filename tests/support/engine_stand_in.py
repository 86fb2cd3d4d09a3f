"""Servers that speak as vLLM, SGLang and llama-server, with the vocabulary of the bundled model.

What they write is told by a `Script`: it depends on the tokens of the request alone, so that
another engine goes on where one was lost, and on the constraint, which llguidance enforces.
`faults` lets them fail to order. Each runs in a thread of its own, on a free port of loopback, or
as a process that can be killed: python -m tests.support.engine_stand_in KIND PORT STEP_S TEXT.
`engine_kinds` has the bodies.
"""

import asyncio
import itertools
import json
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from llguidance import LLMatcher

from inference_svc.llama.vocabulary import Vocabulary, grammar_tokenizer
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.engine_kinds import WIRES
from tests.support.engine_wire import Asked, EngineState, Output, Refused, event

_HTML: Final = "<html><body>Bad gateway</body></html>"
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_WORDS: Final = " the cat sat on a warm mat and saw the old dog sleep in the sun"
_STREAM_END: Final = b"0\r\n\r\n"
_PATIENCE_S: Final = 60.0
_PROCESS_SLOTS: Final = 16


class Script:
    """What engines write after a prompt: `tokens`, or else words without end, which depend on the
    number of tokens so far.

    A request whose prompt ends with a beginning of `tokens` goes on there.
    """

    def __init__(self, vocabulary: Vocabulary, text: str = "") -> None:
        """`text` may have control tokens. End tokens follow it."""
        self._words = vocabulary.tokenize(_WORDS, add_special=False, parse_special=False)
        self._tokens = vocabulary.tokenize(text, add_special=False, parse_special=True)
        self._end = min(vocabulary.end_tokens)

    def write(self, prompt: Sequence[int]) -> Iterator[int]:
        """The output tokens after a prompt."""
        if not self._tokens:
            length = len(prompt)
            while True:
                yield self._words[length % len(self._words)]
                length += 1
        yield from self._tokens[self._num_written(list(prompt)) :]
        yield from itertools.repeat(self._end)

    def _num_written(self, prompt: list[int]) -> int:
        longest = min(len(prompt), len(self._tokens))
        counts = (each for each in range(longest, 0, -1) if prompt[-each:] == self._tokens[:each])
        return next(counts, 0)


@dataclass
class Fault:
    """How an engine fails, in the next `times` requests for tokens (None: in all), after `after`
    tokens.

    `kind` is "cut" (the connection ends), "silence" (until `release`), "html" or "invalid" (instead
    of an event), "error" (an event with an error of `status`, under status 200), "outside" (an id
    beyond the vocabulary), "more" (tokens beyond the limit), "status" (`status` and `headers`
    before any token, as of a redirect), "slow" (no head of the answer until `release`) or
    "buffered" (all in one write).
    """

    kind: str
    after: int = 0
    times: int | None = None
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)


class Request(NamedTuple):
    """What an engine was sent. `body` is parsed JSON, or text that is none."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class _Cut(Exception):
    """The connection ends here."""


class EngineStandIn:
    """One engine. What is changed here holds from the next request on.

    `state` is what it tells of itself. `requests` are all that it was sent, `num_closed` those
    whose client closed the connection before the end of the answer, and `most_running` is the
    highest number of requests for tokens that ran at once.
    """

    def __init__(
        self, kind: str, vocabulary: Vocabulary, script: Script | None = None, port: int = 0
    ) -> None:
        self.state = EngineState(vocabulary)
        self.script = script or Script(vocabulary)
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.num_closed = self.most_running = 0
        self._changed = threading.Condition()
        self._wire = WIRES[kind](self.state)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._released = asyncio.Event()
        self._left = asyncio.Condition()
        self._port = port
        self._thread.start()
        self.start()

    @property
    def url(self) -> str:
        """Its base URL, the same after a restart."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def generations(self) -> list[Any]:
        """The bodies of the requests for tokens."""
        return [each.body for each in self.requests if each.path == self._wire.generate_path]

    def start(self) -> None:
        """Listen; after `stop` on the same port again."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def stop(self) -> None:
        """Close the port and all connections, as if the process were killed."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait for what `requests` and `num_closed` tell. Raises TimeoutError after a minute."""
        with self._changed:
            if not self._changed.wait_for(is_true, _PATIENCE_S):
                raise TimeoutError("the engine was not asked, or its client stayed, for a minute")

    def release(self) -> None:
        """End all silences, also those that would come."""
        self._loop.call_soon_threadsafe(self._released.set)

    def close(self) -> None:
        """Stop, and end the thread."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # --- HTTP -------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        connections = dict(self._connections)
        for task, writer in connections.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served outside of a task")
        self._connections[task] = writer
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError, _Cut):
                await self._answer_all(reader, writer)
        finally:
            del self._connections[task]
            writer.transport.abort()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection in turn, until it is closed."""
        first = await reader.read(1)
        while first:
            head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
            method, target, _ = line.split(" ")
            pairs = (each.split(":", 1) for each in lines)
            headers = {name.lower(): value.strip() for name, value in pairs}
            data = await reader.readexactly(int(headers.get("content-length", "0")))
            self.requests.append(_request(method, target, headers, data))
            self._notify()
            answering = asyncio.ensure_future(self._answer(self.requests[-1], writer))
            following = asyncio.ensure_future(reader.read(1))
            try:
                await asyncio.wait((answering, following), return_when="FIRST_COMPLETED")
                if not answering.done():  # nobody sends more before the answer: it was closed
                    self.num_closed += 1
                    self._notify()
                    return
                await answering
                first = await following
            finally:
                for task in (answering, following):
                    task.cancel()
                await asyncio.gather(answering, following, return_exceptions=True)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        try:
            if request.path == self._wire.generate_path:
                await self._generate(request, writer)
            else:
                answer = self._wire.answer(request.path, request.body)
                await _send(writer, 200, answer)
        except Refused as refusal:
            error = self._wire.error(refusal)
            is_streamed = isinstance(request.body, dict) and request.body.get("stream") is True
            if refusal.is_late and is_streamed and self._wire.begins_early:
                done = _chunk("data: [DONE]\n\n")
                writer.writelines((_STREAM_HEAD, _chunk(event(error)), done, _STREAM_END))
                await writer.drain()
            else:
                await _send(writer, refusal.status, error, refusal.headers)

    # --- tokens -----------------------------------------------------------------------------------

    async def _generate(self, request: Request, writer: asyncio.StreamWriter) -> None:
        fault = self._next_fault()
        if fault.kind == "status":
            raise Refused("the ordered fault", fault.status, headers=fault.headers)
        asked = self._wire.read(request.body)
        if fault.kind == "slow":
            await self._released.wait()
        async with self._slot():
            output = Output(asked)
            if asked.is_streamed:
                await self._stream(output, fault, writer)
                return
            for token, reason in self._tokens(asked, fault):
                output.add(token, reason)
            await _send(writer, 200, self._wire.unary(output))

    async def _stream(self, output: Output, fault: Fault, writer: asyncio.StreamWriter) -> None:
        parts = [_STREAM_HEAD, *map(_chunk, self._wire.begin(output))]
        is_due = fault.after == 0
        for token, reason in self._tokens(output.asked, fault):
            if is_due:
                writer.writelines(parts)
                await self._fail(fault, writer)
                parts = []
            output.add(token, reason)
            parts += map(_chunk, self._wire.token(output))
            is_due = len(output.tokens) == fault.after
            if fault.kind != "buffered":
                writer.writelines(parts)
                await writer.drain()
                parts = []
            await self._step()
        if is_due:
            await self._fail(fault, writer)
        writer.writelines([*parts, *map(_chunk, self._wire.end(output)), _STREAM_END])
        await writer.drain()

    async def _step(self) -> None:
        """Wait for the next step, which all streams have in common; let others run at least, and
        see that the client has closed."""
        step_s = self.state.step_s
        await asyncio.sleep(step_s - self._loop.time() % step_s if step_s else 0)

    async def _fail(self, fault: Fault, writer: asyncio.StreamWriter) -> None:
        """Do what the fault does between two tokens."""
        if fault.kind == "silence":
            await writer.drain()
            await self._released.wait()
        elif fault.kind in ("cut", "html", "invalid", "error"):
            error = Refused("the ordered fault", fault.status)
            wrong = {
                "cut": "",
                "html": _HTML,
                "invalid": 'data: {"a": \n\n',
                "error": event(self._wire.error(error)),
            }[fault.kind]
            if wrong:
                writer.writelines((_chunk(wrong), _STREAM_END))
            await writer.drain()
            raise _Cut

    def _tokens(self, asked: Asked, fault: Fault) -> Iterator[tuple[int, str]]:
        """The tokens of an answer, each with the reason why it is the last one, else ""."""
        state = self.state
        matcher = None
        if asked.grammar is not None:
            matcher = LLMatcher(grammar_tokenizer(state.vocabulary), asked.grammar)
        limit = asked.max_tokens + (3 if fault.kind == "more" else 0)
        ends = state.vocabulary.end_tokens
        for index, written in enumerate(self.script.write(asked.prompt)):
            token = written if matcher is None else _allowed(matcher, written)
            if fault.kind == "outside" and index == fault.after:
                token = state.vocabulary.size + 7
            if token in ends and not asked.ignores_end:
                yield token, "stop"
                return
            is_last = index + 1 == limit
            yield token, "length" if is_last else ""
            if is_last:
                return

    def _next_fault(self) -> Fault:
        for fault in self.faults:
            if fault.times is None:
                return fault
            if fault.times > 0:
                fault.times -= 1
                return fault
        return Fault("none", after=-1)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Wait until fewer requests than slots run."""
        state = self.state
        limit = state.max_queued
        if limit is not None and state.num_running >= state.slots and state.num_waiting >= limit:
            raise Refused("the queue is full", 503, is_late=True)
        state.num_waiting += 1
        try:
            async with self._left:
                await self._left.wait_for(lambda: state.num_running < state.slots)
                state.num_running += 1
        finally:
            state.num_waiting -= 1
        self.most_running = max(self.most_running, state.num_running)
        try:
            yield
        finally:
            state.num_running -= 1
            async with self._left:
                self._left.notify_all()


@contextmanager
def run_engine(kind: str, text: str = "", port: int = 0) -> Iterator[EngineStandIn]:
    """Run an engine with a vocabulary of its own, which writes `text`, or words without end."""
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    engine = EngineStandIn(kind, vocabulary, Script(vocabulary, text), port)
    try:
        yield engine
    finally:
        engine.close()
        vocabulary.close()


def _request(method: str, target: str, headers: Mapping[str, str], data: bytes) -> Request:
    try:
        body = json.loads(data) if data else None
    except ValueError:
        body = data.decode("utf-8", "replace")
    return Request(method, target.partition("?")[0], headers, body)


async def _send(
    writer: asyncio.StreamWriter, status: int, body: Any, headers: Mapping[str, str] | None = None
) -> None:
    """Write an answer that is no stream."""
    is_text = isinstance(body, str)
    data = body.encode() if is_text else json.dumps(body).encode()
    lines = [
        f"HTTP/1.1 {status} -",
        f"Content-Type: {'text/plain' if is_text else 'application/json'}",
    ]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    head = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""])
    writer.write(head.encode("latin-1") + data)
    await writer.drain()


def _chunk(event: str) -> bytes:
    data = event.encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def _allowed(matcher: LLMatcher, wanted: int) -> int:
    """The wanted token, or the first one that the grammar allows instead; it is consumed."""
    mask = matcher.compute_bitmask()
    token = wanted
    if not mask[wanted // 8] >> (wanted % 8) & 1:
        index = next(index for index, byte in enumerate(mask) if byte)
        token = index * 8 + (mask[index] & -mask[index]).bit_length() - 1
    matcher.consume_token(token)
    return token


def main(kind: str, port: str, step_s: str, text: str = "") -> None:
    """Run an engine until the process is killed."""
    with run_engine(kind, text, int(port)) as engine:
        engine.state.step_s, engine.state.slots = float(step_s), _PROCESS_SLOTS
        sys.stderr.write(f"listening on {engine.url}\n")
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
