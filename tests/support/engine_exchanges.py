"""HTTP exchanges with engines that serve the demo model.

`EXCHANGES` says what is asked of each kind. tests/data/engines has what real engines answered,
written by `python -m tools.record_engine KIND URL`; tests/engines compares the engines of today
with it, and tests/service/inference_svc/upstream the stand-ins.
"""

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

RECORDINGS: Final = Path(__file__).resolve().parents[1] / "data" / "engines"
PROMPT: Final = [2040, 276, 198, 340, 278, 283, 419, 317, 220, 1845, 30, 2041, 198, 2040, 275, 198]
"""The tokens of the bundled model for "What is the capital of France?" in its template."""
OVERLONG: Final = PROMPT * 70
TEXTS: Final = "Größe 12345, 日本 🙂<|im_end|>\n<tool_call>"
_SCHEMA: Final = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
_LARK: Final = '%llguidance {}\nstart: "yes" | "no"'
_GBNF: Final = 'root ::= "yes" | "no"'
_TIMEOUT_S: Final = 300.0
_KEPT_HEADERS: Final = ("content-type", "retry-after", "transfer-encoding", "connection")


@dataclass(frozen=True)
class Exchange:
    """A request; without `body` it is a GET.

    After `closes_after` events the client closes the connection. `copies` are sent at once, of
    which the recording has all. `keeps` are the beginnings of the lines of the answer that the
    recording has; all if empty.
    """

    name: str
    path: str
    body: Mapping[str, Any] | str | None = None
    closes_after: int | None = None
    copies: int = 1
    keeps: tuple[str, ...] = ()


@dataclass
class Answer:
    """What came back: the parts as the engine wrote them, each with its time since the request in
    milliseconds."""

    status: int
    headers: dict[str, str]
    parts: list[tuple[int, str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole body."""
        return "".join(text for _, text in self.parts)

    @property
    def events(self) -> list[Any]:
        """The data of its server-sent events, parsed unless it is "[DONE]"."""
        lines = (line[5:].strip() for line in self.text.split("\n") if line.startswith("data:"))
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    @property
    def shape(self) -> Any:
        """The `shape` of its JSON or of its events; "text" of anything else."""
        if self.is_stream:
            return shape(self.events)
        try:
            return shape(json.loads(self.text))
        except ValueError:
            return "text"

    @property
    def is_stream(self) -> bool:
        """Whether it consists of server-sent events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")


def send(url: str, exchange: Exchange) -> Answer:
    """Make one exchange with an engine."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_S)
    try:
        body = exchange.body
        text = body if body is None or isinstance(body, str) else json.dumps(body)
        method = "GET" if text is None else "POST"
        headers = {"Content-Type": "application/json"} if text is not None else {}
        started = time.monotonic()
        connection.request(method, parts.path + exchange.path, text, headers)
        response = connection.getresponse()
        found = {name: value for name in _KEPT_HEADERS if (value := response.headers.get(name))}
        answer = Answer(response.status, found)
        num_events = 0
        while data := response.read1(1 << 20):
            since = round((time.monotonic() - started) * 1000)
            answer.parts.append((since, data.decode("utf-8", "replace")))
            num_events += data.count(b"data:")
            if exchange.closes_after is not None and num_events >= exchange.closes_after:
                break
        return answer
    finally:
        connection.close()


def shape(value: Any) -> Any:
    """The names and types of a JSON value: {"a": [1, 2]} has the shape {"a": ["number"]}.

    A list has the shapes of its items, each once; null has the shape of anything. Names like
    "token_id:7" are cut at the colon.
    """
    if isinstance(value, dict):
        return {name.partition(":")[0]: shape(item) for name, item in sorted(value.items())}
    if isinstance(value, list):
        shapes: list[Any] = []
        for item in map(shape, value):
            if item not in shapes:
                shapes.append(item)
        return shapes
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else None


def fits(found: Any, recorded: Any) -> bool:
    """Whether a shape has all that a recorded one has. Null, and an empty list, fit anything."""
    if found is None or recorded is None:
        return True
    if isinstance(recorded, dict) and isinstance(found, dict):
        return all(name in found and fits(found[name], recorded[name]) for name in recorded)
    if isinstance(recorded, list) and isinstance(found, list):
        return not found or all(any(fits(each, item) for each in found) for item in recorded)
    return bool(found == recorded)


def recordings(kind: str) -> Iterator[tuple[dict[str, Any], Answer]]:
    """The recorded exchanges of a kind: the line of the file, and its answer."""
    for line in (RECORDINGS / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        parts = [(since, text) for since, text in found["parts"]]
        yield found, Answer(found["status"], found["headers"], parts)


def _completion(**fields: Any) -> dict[str, Any]:
    """A body for llama-server."""
    greedy = {"prompt": PROMPT, "n_predict": 5, "temperature": 0, "return_tokens": True}
    return {**greedy, "stream": True, **fields}


def _completions(**fields: Any) -> dict[str, Any]:
    """A body for vLLM."""
    greedy = {"model": "demo", "prompt": PROMPT, "max_tokens": 5, "temperature": 0, "top_k": 0}
    return {**greedy, "stream": True, "return_token_ids": True, **fields}


def _embeddings(given: Sequence[int] | Sequence[Sequence[int]]) -> dict[str, Any]:
    """A body for any engine."""
    return {"model": "demo", "input": given}


_SAMPLED: Final = {"temperature": 0.9, "top_p": 0.9, "min_p": 0.01, "seed": 7}

EXCHANGES: Final[Mapping[str, tuple[Exchange, ...]]] = {
    "llama_server": (
        Exchange("health", "/health"),
        Exchange("props", "/props"),
        Exchange("embeddings off", "/v1/embeddings", _embeddings([PROMPT])),
        Exchange("models", "/v1/models"),
        Exchange("slots idle", "/slots"),
        Exchange("tokenize", "/tokenize", {"content": TEXTS, "add_special": True}),
        Exchange("tokenize plain", "/tokenize", {"content": TEXTS, "parse_special": False}),
        Exchange("detokenize", "/detokenize", {"tokens": PROMPT}),
        Exchange("stream", "/completion", _completion()),
        Exchange("stream again", "/completion", _completion()),
        Exchange("unary", "/completion", _completion(stream=False)),
        Exchange("to the end", "/completion", _completion(n_predict=64)),
        Exchange("logprobs", "/completion", _completion(n_predict=2, n_probs=2)),
        Exchange("progress", "/completion", _completion(prompt=PROMPT * 40, return_progress=True)),
        Exchange("no tokens", "/completion", _completion(n_predict=0)),
        Exchange(
            "samplers",
            "/completion",
            _completion(n_predict=3, samplers=["top_k", "min_p", "temperature"], **_SAMPLED),
        ),
        Exchange("stop", "/completion", _completion(n_predict=40, stop=["Paris"])),
        Exchange("ignore_eos", "/completion", _completion(n_predict=40, ignore_eos=True)),
        Exchange("json_schema", "/completion", _completion(n_predict=24, json_schema=_SCHEMA)),
        Exchange("grammar", "/completion", _completion(n_predict=8, grammar=_GBNF)),
        Exchange("lark", "/completion", _completion(n_predict=8, grammar=_LARK)),
        Exchange("bad grammar", "/completion", _completion(grammar="root ::= nothing")),
        Exchange("bad schema", "/completion", _completion(json_schema={"$ref": "#/nowhere"})),
        Exchange("unknown field", "/completion", _completion(n_predict=1, no_such_field=1)),
        Exchange("wrong type", "/completion", _completion(temperature="warm")),
        Exchange("out of range", "/completion", _completion(repeat_last_n=-1)),
        Exchange("token outside", "/completion", _completion(prompt=[2048])),
        Exchange("not JSON", "/completion", "{"),
        Exchange("too long", "/completion", _completion(prompt=OVERLONG)),
        Exchange("no route", "/nowhere", {}),
        Exchange("overload", "/completion", _completion(n_predict=24, ignore_eos=True), copies=4),
        Exchange(
            "closed", "/completion", _completion(n_predict=400, ignore_eos=True), closes_after=2
        ),
        Exchange("slots after", "/slots"),
    ),
    "llama_server_embeddings": (
        Exchange("models", "/v1/models"),
        Exchange("tokenize", "/tokenize", {"content": TEXTS, "add_special": True}),
        Exchange("embeddings", "/v1/embeddings", _embeddings([PROMPT, PROMPT[:3]])),
        Exchange("one embedding", "/v1/embeddings", _embeddings(PROMPT)),
        Exchange("no tokens to embed", "/v1/embeddings", _embeddings([[]])),
        Exchange("unknown tokens to embed", "/v1/embeddings", _embeddings([[1 << 20]])),
        Exchange("unary", "/completion", _completion(stream=False)),
    ),
    "vllm": (
        Exchange("health", "/health"),
        Exchange("version", "/version"),
        Exchange("models", "/v1/models"),
        Exchange("load", "/load"),
        Exchange("tokenize", "/tokenize", {"prompt": TEXTS}),
        Exchange("tokenize plain", "/tokenize", {"prompt": TEXTS, "add_special_tokens": False}),
        Exchange("detokenize", "/detokenize", {"tokens": PROMPT}),
        Exchange("stream", "/v1/completions", _completions()),
        Exchange("usage", "/v1/completions", _completions(stream_options={"include_usage": True})),
        Exchange("unary", "/v1/completions", _completions(stream=False)),
        Exchange("to the end", "/v1/completions", _completions(max_tokens=64)),
        Exchange(
            "logprobs",
            "/v1/completions",
            _completions(max_tokens=2, logprobs=2, return_tokens_as_token_ids=True),
        ),
        Exchange("sampled", "/v1/completions", _completions(max_tokens=3, **_SAMPLED)),
        Exchange("stop", "/v1/completions", _completions(max_tokens=40, stop=["Paris"])),
        Exchange("ignore_eos", "/v1/completions", _completions(max_tokens=40, ignore_eos=True)),
        Exchange("interval", "/v1/completions", _completions(max_tokens=9, stream_interval=4)),
        Exchange("salt", "/v1/completions", _completions(max_tokens=1, cache_salt="0a")),
        Exchange("salt in base64", "/v1/completions", _completions(max_tokens=1, cache_salt="a/b")),
        *(
            Exchange(
                f"constraint {name}",
                "/v1/completions",
                _completions(max_tokens=24, structured_outputs={name: value}),
            )
            for name, value in (
                ("json", _SCHEMA),
                ("json_object", True),
                ("regex", "(yes|no)"),
                ("choice", ["yes", "no"]),
                ("grammar", _LARK),
            )
        ),
        Exchange(
            "GBNF",
            "/v1/completions",
            _completions(max_tokens=8, structured_outputs={"grammar": _GBNF}),
        ),
        Exchange(
            "bad grammar",
            "/v1/completions",
            _completions(structured_outputs={"grammar": "start: nothing"}),
        ),
        Exchange(
            "two constraints",
            "/v1/completions",
            _completions(structured_outputs={"regex": "a", "choice": ["a"]}),
        ),
        Exchange("unknown field", "/v1/completions", _completions(max_tokens=1, guided_regex="a")),
        Exchange("wrong type", "/v1/completions", _completions(temperature="warm")),
        Exchange("out of range", "/v1/completions", _completions(top_p=2)),
        Exchange("too many logprobs", "/v1/completions", _completions(logprobs=21)),
        Exchange("priority", "/v1/completions", _completions(priority=1)),
        Exchange("token outside", "/v1/completions", _completions(prompt=[2048])),
        Exchange("other model", "/v1/completions", _completions(model="other")),
        Exchange("not JSON", "/v1/completions", "{"),
        Exchange("too long", "/v1/completions", _completions(prompt=OVERLONG)),
        Exchange("no route", "/nowhere", {}),
        Exchange(
            "overload", "/v1/completions", _completions(max_tokens=24, ignore_eos=True), copies=8
        ),
        Exchange(
            "closed",
            "/v1/completions",
            _completions(max_tokens=400, ignore_eos=True),
            closes_after=2,
        ),
        Exchange(
            "metrics",
            "/metrics",
            keeps=("vllm:num_requests", "vllm:kv_cache", "vllm:prefix_cache", "vllm:cache_config"),
        ),
    ),
}
"""What is asked of each kind, in this order."""
