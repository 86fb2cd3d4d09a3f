"""Answers that go on exactly when their replica is killed, by the rows of docs/operate/scale.md,
and what a client has of their streams."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.support.pictures import circle_png, data_url
from tests.support.services import MODEL
from tools.demo_model.conversation import CONTROL_TOKENS, MARKER_TOKENS

ADAPTER: Final = "demo-lora-pirate"
MOVED: Final = "a generation moves to another replica"
"""What the service logs whose call goes on."""
CHATS, TEXTS = "chat/completions", "completions"
_PIECE: Final = 16
"""Characters of what is compared of broken streams."""
_THINK_END: Final = str((*CONTROL_TOKENS, *MARKER_TOKENS).index("</think>"))


class Case(NamedTuple):
    row: str
    """The row of the table."""
    path: str
    body: Mapping[str, Any]
    shows: str = "text"
    """The field of each `Answer` that cannot be empty."""


def _chat(text: str = "Tell me a story.", **fields: Any) -> dict[str, Any]:
    """A long deterministic answer; it ends only at its limit."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 2000,
        "temperature": 0,
        "ignore_eos": True,
        "deterministic": True,
        "stream": True,
        **fields,
    }


def _list(count: int) -> dict[str, Any]:
    """A schema with many tokens."""
    words = {"type": "string", "minLength": 6, "maxLength": 12}
    return {"type": "array", "items": words, "minItems": count, "maxItems": count}


def _weather(num_notes: int) -> dict[str, Any]:
    properties = {"city": {"type": "string", "maxLength": 20}, "notes": _list(num_notes)}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": ["city", "notes"],
        "additionalProperties": False,
    }
    function = {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": parameters,
        "strict": True,
    }
    return {"tools": [{"type": "function", "function": function}], "ignore_eos": False}


_FORMAT: Final = {"type": "json_schema", "json_schema": {"name": "list", "schema": _list(120)}}
_PICTURE: Final = [
    {"type": "text", "text": "What is in this picture?"},
    {"type": "image_url", "image_url": {"url": data_url(circle_png("red"))}},
]
_SUM: Final = "What is 17 plus 25?"
_PARIS: Final = "What is the weather in Paris?"
_BOTH: Final = "What is the weather in Paris and in Rome?"
_ENDLESS_THOUGHT: Final = {"enable_thinking": True, "logit_bias": {_THINK_END: -100}}
_PROMPT: Final = {"model": MODEL, "prompt": "Once upon a time, there was a cat."}
_TEXT: Final = {**{k: v for k, v in _chat().items() if k != "messages"}, **_PROMPT}

CASES: Final[Mapping[str, Case]] = {
    "chat": Case("chats and completions", CHATS, _chat()),
    "completion": Case("chats and completions", TEXTS, _TEXT),
    "seeded choices": Case("seeds and several choices", CHATS, _chat(seed=3, n=2, temperature=0.8)),
    "a schema": Case(
        "JSON Schema and other formats",
        CHATS,
        _chat(seed=4, temperature=0.8, ignore_eos=False, response_format=_FORMAT),
    ),
    "stop texts": Case("stop texts", CHATS, _chat(stop=["never in it", "zzz"])),
    "logprobs of a completion": Case(
        "log probabilities",
        TEXTS,
        {**_TEXT, "logprobs": 1, "seed": 5, "temperature": 0.8},
        "logprobs",
    ),
    "logprobs of a chat": Case(
        "log probabilities", CHATS, _chat(logprobs=True, top_logprobs=2), "logprobs"
    ),
    "logprobs of choices": Case(
        "log probabilities",
        CHATS,
        _chat(logprobs=True, top_logprobs=1, n=2, seed=6, temperature=1.2),
        "logprobs",
    ),
    "a call": Case(
        "tool calls, chosen, required or several", CHATS, _chat(_PARIS, **_weather(120)), "calls"
    ),
    "a required call": Case(
        "tool calls, chosen, required or several",
        CHATS,
        _chat(_SUM, **_weather(120), tool_choice="required"),
        "calls",
    ),
    "parallel calls": Case(
        "tool calls, chosen, required or several", CHATS, _chat(_BOTH, **_weather(60)), "calls"
    ),
    "reasoning": Case("reasoning", CHATS, _chat(_SUM, **_ENDLESS_THOUGHT), "reasoning"),
    "reasoning with logprobs": Case(
        "reasoning", CHATS, _chat(_SUM, enable_thinking=True, logprobs=True), "reasoning"
    ),
    "a thinking budget": Case(
        "thinking budgets",
        CHATS,
        _chat(_SUM, **_ENDLESS_THOUGHT, thinking_token_budget=1000),
        "reasoning",
    ),
    "an adapter": Case("adapters", CHATS, _chat(model=ADAPTER)),
    "a picture": Case("pictures", CHATS, _chat(messages=[{"role": "user", "content": _PICTURE}])),
    "an echo": Case(
        "`echo` and log probabilities of the prompt",
        TEXTS,
        {**_TEXT, "echo": True, "logprobs": 1},
        "logprobs",
    ),
    "logprobs of a prompt": Case(
        "`echo` and log probabilities of the prompt",
        CHATS,
        _chat(prompt_logprobs=2),
        "prompt_logprobs",
    ),
}
"""Answers long enough to be interrupted."""


@dataclass
class Answer:
    """One choice of a stream. Ids of calls are random, so `calls` has their names and arguments."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    call_ids: list[str] = field(default_factory=list, compare=False)
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: list[Any] = field(default_factory=list)
    end: str = ""

    def add(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or {}
        self.text += choice.get("text") or delta.get("content") or ""
        self.reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            if call.get("id"):
                assert call["index"] == len(self.calls)
                self.call_ids.append(call["id"])
                self.calls.append((function["name"], ""))
            name, arguments = self.calls[call["index"]]
            self.calls[call["index"]] = (name, arguments + (function.get("arguments") or ""))
        logprobs = choice.get("logprobs") or {}
        self.logprobs += logprobs.get("content") or ()
        self.logprobs += zip(
            logprobs.get("tokens", ()), logprobs.get("token_logprobs", ()), strict=True
        )
        self.end += choice["finish_reason"] or ""

    def pieces(self) -> Mapping[str, list[str]]:
        """What is compared, in order: that of a broken stream is the beginning of what it would
        have been, but for its last piece."""
        calls = "".join(f"{name}({arguments})" for name, arguments in self.calls)
        texts = {"text": self.text, "reasoning": self.reasoning, "calls": calls, "end": self.end}
        lists = {"logprobs": self.logprobs, "prompt_logprobs": self.prompt_logprobs}
        return {kind: split(text) for kind, text in texts.items()} | {
            kind: [json.dumps(each) for each in entries] for kind, entries in lists.items()
        }


def split(text: str) -> list[str]:
    """The pieces of a text."""
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]


def answers(events: Iterable[dict[str, Any]]) -> dict[int, Answer]:
    """The choices of a stream."""
    found: dict[int, Answer] = {}
    for event in events:
        for choice in event["choices"]:
            found.setdefault(choice["index"], Answer()).add(choice)
        if "prompt_logprobs" in event:
            found[0].prompt_logprobs.append(event["prompt_logprobs"])
    for answer in found.values():
        assert len(set(answer.call_ids)) == len(answer.calls)
    return found
