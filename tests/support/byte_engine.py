"""A small engine over bytes as tokens that speaks as llama-server, vLLM, SGLang or OpenAI, in the
loop of the test.

What it writes is a `reply` of tokens after a prompt of `PROMPT`; a longer prompt goes on in the
reply, messages do not. Faults are told for each request for tokens, in order. `collect` reads what
a connection to such engines emits.
"""

import asyncio
import itertools
import json
import re
from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from inference_svc.engine.events import Event, Failed, Finished
from inference_svc.engine.request import Command, SequenceRequest, Submit
from inference_svc.engine_client.messages import EngineMessage, Ready
from inference_svc.engine_client.process import StartFailed
from inference_svc.upstream.connection import UpstreamConnection
from inference_svc.upstream.endpoint import EndpointState
from inference_svc.upstream.endpoints import EndpointStatus, Mode
from inference_svc.upstream.engine_api import WRONG_TYPE
from inference_svc.upstream.probe import PinnedIdentity
from inference_svc.upstream.target import UpstreamTarget
from inference_svc.upstream.text_mode import TextMode
from inference_svc.upstream.token_mode import TokenMode, already_open
from tests.support.sequences import make_request

PROMPT: Final = tuple(b"Say: ")
END: Final = 256
_CONTROL: Final = {END: "<end>", 257: "<begin>"}
SIZE: Final = 258


class ByteVocabulary:
    """Bytes, the end of a turn (256) and the beginning of one (257)."""

    size = SIZE
    end_tokens = frozenset({END})
    control_texts = tuple(sorted(_CONTROL.values()))
    added_tokens: Mapping[str, int] = {}

    def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, field: str = "prompt"
    ) -> list[int]:
        """The bytes of a text."""
        if not parse_special:
            return list(text.encode())
        parts = re.split("(<end>|<begin>)", text)
        ids = {name: token for token, name in _CONTROL.items()}
        return [
            token for part in parts for token in ([ids[part]] if part in ids else part.encode())
        ]

    def piece(self, token: int, special: bool = False) -> bytes:
        """A byte, or the text of a control token."""
        if token in _CONTROL:
            return _CONTROL[token].encode() if special else b""
        return bytes([token])


@dataclass
class Attempt:
    """How the engine answers one request for tokens: the connection is cut after `lost_after`
    tokens; `raw` is sent instead of everything; `sizes` are those of the writes."""

    lost_after: int | None = None
    raw: bytes | None = None
    sizes: Sequence[int] = ()
    per_event: int = 1
    hold: asyncio.Event | None = None
    """Before the answer goes on after `held_after` tokens."""
    held_after: int = 0


@dataclass
class ByteEngine:
    """One engine; `bodies` are the requests for tokens that it got, `most_at_once` how many it had
    at the same time, `closed` how many of them were closed by the client, and `accepted` the
    connections to it."""

    reply: Sequence[int]
    kind: str = "llama_server"
    attempts: list[Attempt] = field(default_factory=list)
    probes: list[Attempt] = field(default_factory=list)
    """Of the next requests for two tokens, which are probes."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    routes: dict[str, Callable[[], tuple[int, Any]]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    posted: list[dict[str, Any]] = field(default_factory=list)
    """The bodies of requests to `routes`."""
    heads: list[str] = field(default_factory=list)
    model: str = "bytes"
    slots: int = 4
    closed: int = 0
    accepted: int = 0
    num_open: int = 0
    most_at_once: int = 0
    ignores_constraints: bool = False
    ignored: frozenset[str] = frozenset()
    """Fields that it does not know."""
    max_logprobs: int | None = None
    """Of messages: the alternatives of a token that it tells; None: it ignores the fields."""
    url: str = ""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    closed_one: asyncio.Event = field(default_factory=asyncio.Event)
    got_one: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None

    async def start(self, port: int = 0, ssl: Any = None) -> None:
        """Listen; `url` is then its address."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port, ssl=ssl)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if ssl else 'http'}://127.0.0.1:{port}"

    async def got(self, count: int) -> None:
        """Wait until it has got so many requests for tokens; fail after half a minute."""
        async with asyncio.timeout(30):
            while len(self.bodies) < count:
                self.got_one.clear()
                await self.got_one.wait()

    async def stop(self) -> None:
        """Close the socket and all connections."""
        if self._server is not None:
            self._server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # also if it never began

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (
                        int(line.partition(":")[2])
                        for line in head.split("\r\n")
                        if line.lower().startswith("content-length:")
                    ),
                    0,
                )
                body = json.loads(await reader.readexactly(length)) if length else None
                self.heads.append(head)
                await self._answer(head.split()[1], body, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async def _answer(
        self, path: str, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.requests.append(path)
        route = path.partition("?")[0]
        wire = _WIRES[self.kind]
        known = wire.routes(self)
        if path in self.routes:
            self.posted += [body] if body is not None else []
            await _send(writer, *self.routes[path]())
        elif route in known:
            await _send(writer, 200, known[route])
        elif route == wire.tokenize:
            text = body["content" if "content" in body else "prompt"]
            tokens = ByteVocabulary().tokenize(text, add_special=False, parse_special=True)
            await _send(writer, 200, {"tokens": tokens})
        elif route == wire.generate:
            sampling = body.pop("sampling_params", {})
            await self._generate({**body, **sampling}, reader, writer)
        else:
            await _send(writer, 404, {"error": {"code": 404, "message": "no route"}})

    async def _generate(
        self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        limit = _limit(body)
        if self.kind == "openai" and body.get("top_logprobs", 0) > (self.max_logprobs or 99):
            await _send(writer, 400, {"error": {"message": "top_logprobs is too large"}})
        elif self.kind == "openai" and limit == 1 and body.get("logprobs"):
            await self._stream(body, list(b"a"), Attempt(), writer)
        elif self.kind == "openai":
            await self._answer_turn(body, reader, writer)
        elif any(each == WRONG_TYPE for name, each in body.items() if name not in self.ignored):
            await _send(writer, 400, {"error": {"code": 400, "message": "wrong type"}})
        elif "stream" not in body:
            lacks_field = self.kind == "sglang" and "logit_bias" in body
            await _send(writer, 400 if lacks_field else 200, {})
        elif not body["stream"]:
            biases = [{"token": token, "bias": bias} for token, bias in body["logit_bias"]]
            await _send(writer, 200, {"generation_settings": {**body, "logit_bias": biases}})
        elif limit == 2 and not self._goes_on(body):
            is_enforced = _is_constrained(body) and not self.ignores_constraints
            written = b"zqzq" if is_enforced else b"ab"
            attempt = self.probes.pop(0) if self.probes else Attempt()
            await self._stream(body, list(written), attempt, writer)
        else:
            await self._answer_turn(body, reader, writer)

    @staticmethod
    def _goes_on(body: dict[str, Any]) -> bool:
        """Whether a request is no probe, but a turn behind what was written before."""
        prompt = body.get("prompt") or body.get("input_ids") or ()
        return len(prompt) > len(PROMPT) and [*prompt[: len(PROMPT)]] == [*PROMPT]

    async def _answer_turn(
        self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.bodies.append(body)
        self.num_open += 1
        self.most_at_once = max(self.most_at_once, self.num_open)
        self.got_one.set()
        attempt = self.attempts.pop(0) if self.attempts else Attempt()
        body.setdefault("prompt", body.get("input_ids"))
        written = len(body["prompt"] or PROMPT) - len(PROMPT)
        watch = asyncio.ensure_future(reader.read(1))
        answer = asyncio.ensure_future(
            self._stream(body, list(self.reply)[written:], attempt, writer)
        )
        await asyncio.wait({watch, answer}, return_when=asyncio.FIRST_COMPLETED)
        is_closed = watch.done() and not answer.done()
        for task in (watch, answer):
            if task is watch or is_closed:
                task.cancel()
        _, problem = await asyncio.gather(watch, answer, return_exceptions=True)
        self.num_open -= 1
        if is_closed:
            self.closed += 1
            self.closed_one.set()
        if is_closed or problem is not None:
            raise ConnectionError

    async def _stream(
        self,
        body: dict[str, Any],
        tokens: list[int],
        attempt: Attempt,
        writer: asyncio.StreamWriter,
    ) -> None:
        if attempt.raw is not None:
            writer.write(attempt.raw)
            await writer.drain()
            if attempt.hold is not None:
                await attempt.hold.wait()
            raise ConnectionError
        if self.max_logprobs is None and self.kind == "openai":
            body = {**body, "logprobs": False}
        limit = _limit(body)
        tokens, at_limit = tokens[:limit], len(tokens) > limit
        lost = attempt.lost_after is not None and attempt.lost_after < len(tokens)
        if lost:
            tokens = tokens[: attempt.lost_after]
        write = _WIRES[self.kind].events
        events = write(tokens, body, None if lost else at_limit, attempt.per_event)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        data = b""
        for number, event in enumerate(events):
            if attempt.hold is not None and number == attempt.held_after:
                await writer.drain()
                await attempt.hold.wait()
            text = f"data: {event}\n\n".encode()
            data += b"%x\r\n%s\r\n" % (len(text), text)
            if not attempt.sizes:
                writer.write(data)
                await writer.drain()
                data = b""
        data += b"" if lost else b"0\r\n\r\n"
        sizes = iter([*attempt.sizes] * (len(data) + 1))
        while data:
            size = next(sizes, len(data))
            writer.write(data[:size])
            await writer.drain()
            await asyncio.sleep(0)
            data = data[size:]
        if lost:
            raise ConnectionError


def _is_constrained(body: dict[str, Any]) -> bool:
    names = ("grammar", "json_schema", "structured_outputs", "regex", "ebnf")
    return any(body.get(name) for name in names)


def _limit(body: dict[str, Any]) -> int:
    names = ("n_predict", "max_tokens", "max_new_tokens")
    return int(next((body[name] for name in names if name in body), 1000))


def _llama_routes(engine: ByteEngine) -> dict[str, Any]:
    meta = {"n_params": 1, "size": 2}
    return {
        "/props": {
            "total_slots": engine.slots,
            "build_info": "b1",
            "default_generation_settings": {"n_ctx": 512},
        },
        "/v1/models": {"data": [{"id": engine.model, "meta": meta}]},
    }


def _vllm_routes(engine: ByteEngine) -> dict[str, Any]:
    return {
        "/version": {"version": "0.33.0"},
        "/v1/models": {"data": [{"id": engine.model, "max_model_len": 512, "root": "r"}]},
    }


def _llama_events(
    tokens: list[int], body: dict[str, Any], at_limit: bool | None, per_event: int
) -> list[str]:
    progress = {"total": 5, "cache": 3, "processed": 5, "time_ms": 1}
    events: list[Any] = [{"content": "", "tokens": [0], "stop": False, "prompt_progress": progress}]
    pending = b""
    for token in tokens:
        pending += ByteVocabulary().piece(token)
        try:
            content = pending.decode()
        except UnicodeDecodeError:
            continue  # it sends no event for an unfinished character
        pending = b""
        event: dict[str, Any] = {"content": content, "tokens": [token], "stop": False}
        if body["n_probs"]:
            top = [{"id": token, "logprob": -0.5}, {"id": 1, "logprob": -1.5}]
            event["completion_probabilities"] = [
                {"id": token, "logprob": -0.5, "top_logprobs": top[: body["n_probs"]]}
            ]
        events.append(event)
    if at_limit is not None:
        stop_type = "limit" if at_limit else "eos"
        events.append({"content": "", "tokens": [], "stop": True, "stop_type": stop_type})
    return [json.dumps(event) for event in events]


def _vllm_events(
    tokens: list[int], body: dict[str, Any], at_limit: bool | None, per_event: int
) -> list[str]:
    groups = [tokens[at : at + per_event] for at in range(0, len(tokens), per_event)] or [[]]
    events: list[str] = []
    for number, group in enumerate(groups):
        is_last = at_limit is not None and number == len(groups) - 1
        reason = ("length" if at_limit else "stop") if is_last else None
        choice: dict[str, Any] = {"text": "x", "token_ids": group, "finish_reason": reason}
        if "logprobs" in body:
            choice["logprobs"] = {
                "token_logprobs": [-0.5] * len(group),
                "top_logprobs": [{f"token_id:{each}": -0.5, "token_id:1": -1.5} for each in group],
            }
        events.append(json.dumps({"choices": [choice]}))
    if at_limit is not None:
        events.append(json.dumps({"choices": [], "usage": {"prompt_tokens": 5}}))
        events.append("[DONE]")
    return events


def _sglang_routes(engine: ByteEngine) -> dict[str, Any]:
    told = {"model_path": "m", "served_model_name": engine.model, "version": "0.5.23"}
    return {"/server_info": {**told, "context_length": 512, "max_running_requests": 4}}


def _sglang_events(
    tokens: list[int], body: dict[str, Any], at_limit: bool | None, per_event: int
) -> list[str]:
    """All tokens so far in each event."""
    events: list[str] = []
    ends = [*range(per_event, len(tokens), per_event), len(tokens)]
    for end in ends:
        reason = None
        if at_limit is not None and end == len(tokens):
            reason = {"type": "length" if at_limit else "stop"}
        meta = {"completion_tokens": end, "cached_tokens": 0, "finish_reason": reason}
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[-0.5, each, None] for each in tokens[:end]]
            meta["output_top_logprobs"] = [
                [[-0.5, each, None], [-1.5, 1, None]] for each in tokens[:end]
            ]
        events.append(json.dumps({"output_ids": tokens[:end], "meta_info": meta}))
    return [*events, "[DONE]"] if at_limit is not None else events


def _openai_routes(engine: ByteEngine) -> dict[str, Any]:
    return {"/v1/models": {"data": [{"id": engine.model, "owned_by": "o"}]}}


def _openai_events(
    tokens: list[int], body: dict[str, Any], at_limit: bool | None, per_event: int
) -> list[str]:
    """A character in each event, and the usage in the last one."""
    text = bytes(each for each in tokens if each != END).decode(errors="ignore")
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": character} for character in text]
    choices: list[Any] = [{"index": 0, "delta": each, "finish_reason": None} for each in deltas]
    for choice in choices if body.get("logprobs") else ():
        token = {"token": choice["delta"]["content"], "logprob": -0.5, "bytes": None}
        others = [{**token, "logprob": -0.5 - rank} for rank in range(body.get("top_logprobs", 0))]
        choice["logprobs"] = {"content": [{**token, "top_logprobs": others}] * bool(token["token"])}
    if at_limit is None:
        return [json.dumps({"choices": [each]}) for each in choices]
    reason = "length" if at_limit else "stop"
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    usage = {"prompt_tokens": 7, "completion_tokens": len(tokens)}
    events: list[Any] = [{"choices": [each]} for each in choices]
    return [*map(json.dumps, [*events, {"choices": [], "usage": usage}]), "[DONE]"]


class _Wire(NamedTuple):
    """What a kind of engine answers."""

    routes: Callable[[ByteEngine], dict[str, Any]]
    tokenize: str
    generate: str
    events: Callable[[list[int], dict[str, Any], bool | None, int], list[str]]


_WIRES: Final = {
    "llama_server": _Wire(_llama_routes, "/tokenize", "/completion", _llama_events),
    "vllm": _Wire(_vllm_routes, "/tokenize", "/v1/completions", _vllm_events),
    "sglang": _Wire(_sglang_routes, "/v1/tokenize", "/generate", _sglang_events),
    "openai": _Wire(_openai_routes, "", "/v1/chat/completions", _openai_events),
}


async def _send(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    writer.write(head.encode() + b"\r\n\r\n" + data)
    await writer.drain()


class Client:
    """A connection to engines, and what it emits. Those of the kind "openai" are used in text
    mode."""

    def __init__(self, target: UpstreamTarget, pin: PinnedIdentity | None = None) -> None:
        self.events: list[Event] = []
        self.messages: list[EngineMessage | StartFailed] = []
        self.exits: list[int] = []
        self._news = asyncio.Event()
        mode: Mode = TextMode(target)
        if target.kind != "openai":
            mode = TokenMode(target, already_open(ByteVocabulary()))
        self.connection = UpstreamConnection(
            target,
            mode,
            pin or PinnedIdentity(),
            on_message=self._receive,
            on_exit=self._exit,
        )

    def _receive(self, message: Any) -> None:
        if isinstance(message, list):
            self.events += message
        else:
            self.messages.append(message)
        self._news.set()

    def _exit(self, code: int) -> None:
        self.exits.append(code)
        self._news.set()

    async def wait_for(self, is_true: Callable[[], bool]) -> None:
        """Wait for what the messages tell; fail after half a minute."""
        async with asyncio.timeout(30):
            while not is_true():
                self._news.clear()
                await self._news.wait()

    async def ready(self) -> Ready:
        """The message that it is ready."""
        await self.wait_for(lambda: any(isinstance(each, Ready) for each in self.messages))
        return next(each for each in self.messages if isinstance(each, Ready))

    def send(self, command: Command) -> None:
        """Send a command."""
        self.connection.send(command)

    async def run(self, request: SequenceRequest) -> list[Event]:
        """Submit a request, and return all its events."""
        self.send(Submit(request))
        return await self.end_of(request.sequence_id)

    async def end_of(self, sequence_id: int) -> list[Event]:
        """The events of a sequence, when it has ended."""

        def own() -> list[Event]:
            return [each for each in self.events if getattr(each, "sequence_id", -1) == sequence_id]

        await self.wait_for(lambda: any(isinstance(each, (Finished, Failed)) for each in own()))
        return own()


@asynccontextmanager
async def connected(*engines: ByteEngine, **options: Any) -> AsyncIterator[Client]:
    """A connection that is ready to the engines, which are started."""
    for engine in engines:
        if not engine.url:
            await engine.start()
    urls = [engine.url for engine in engines]
    client = Client(UpstreamTarget("bytes", urls, **options))
    try:
        await client.ready()
        yield client
    finally:
        await client.connection.close()
        for engine in engines:
            await engine.stop()


def byte_request(sequence_id: int = 0, **changes: Any) -> SequenceRequest:
    """A request with the prompt `PROMPT`."""
    options = {"max_tokens": 100, **changes}
    if "resumed" in options:
        options["resumed"] = array("i", options["resumed"])
    return make_request(sequence_id, PROMPT, **options)


async def run_until_refused(client: Client, **fields: Any) -> EndpointStatus:
    """Send requests until the first URL is refused; another one serves them."""
    async with asyncio.timeout(30):
        for number in itertools.count():
            events = await client.run(byte_request(number, **fields))
            assert isinstance(events[-1], Finished)
            status = client.connection.status.endpoints[0]
            if status.state is EndpointState.REFUSED:
                break
    return status
