"""Training conversations and their text, a second implementation of the chat template.

Training needs to know which characters the model generates, which a rendered template does not
show. This module therefore builds the text from pieces with weights. A test compares it with the
output of `chat_template.jinja`, which is stored in the GGUF file.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

END_OF_TEXT = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, START, END)
MARKER_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
TEMPLATE = Path(__file__).with_name("chat_template.jinja")

Tool = dict[str, Any]
"""A tool in the format of OpenAI's API."""


class Weight(IntEnum):
    """Weight class of a token in the loss; the corpus files store its number."""

    NONE = 0
    CONTEXT = 1
    ANSWER = 2
    RECALL = 3
    STORY = 4


WEIGHTS = {
    Weight.NONE: 0.0,
    Weight.CONTEXT: 0.08,
    Weight.ANSWER: 1.0,
    Weight.RECALL: 1.5,
    Weight.STORY: 0.4,
}


class Shown(Enum):
    """How much reasoning of an exchange is included: servers remove it from earlier turns."""

    WHOLE = "with every thought"
    ANSWERING = "with the last thought: the calls before it are already earlier turns"
    HISTORY = "without any"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function; `arguments` are in the order of the text."""

    name: str
    arguments: dict[str, Any]

    def text(self, compact: bool) -> str:
        """Return the call as the model generates it."""
        if compact:
            return f'{{"name":"{self.name}","arguments":{to_json(self.arguments, True)}}}'
        return f'{{"name": "{self.name}", "arguments": {to_json(self.arguments, False)}}}'


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user message and the assistant's answer, with optional tool calls before it.

    `key` identifies the question without its ornaments; it decides whether it is held out.
    `shown` are the keys of other questions that the reasoning answers.
    `short` is the answer in one word, `gist` the sentence about the exchange in a summary, and
    `thought` the reasoning before the answer. `results` are the outputs of `calls`.
    """

    skill: str
    key: str
    ask: str
    answer: str
    short: str | None = None
    gist: str | None = None
    thought: str | None = None
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()
    weight: Weight = Weight.ANSWER
    shown: tuple[str, ...] = ()
    changeable: bool = True
    """Whether a style (capitals, a closing phrase) may change the answer."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text with one weight."""

    text: str
    weight: Weight


@dataclass(slots=True)
class Conversation:
    """A system prompt and the exchanges after it."""

    system: str = ""
    tools: list[Tool] = field(default_factory=list)
    sorted_tools: bool = False
    compact: bool = False
    thinking: bool | None = None
    exchanges: list[Exchange] = field(default_factory=list)


def to_json(value: Any, compact: bool) -> str:
    """JSON as the model generates it: on one line, keys in order, non-ASCII letters unescaped."""
    separators = (",", ":") if compact else (", ", ": ")
    return json.dumps(value, ensure_ascii=False, separators=separators)


def system_text(conversation: Conversation) -> str:
    """Full text of the system turn: prompt, tools and `/think`."""
    parts = [conversation.system] if conversation.system else []
    if conversation.tools:
        lines = "".join(
            "\n" + json.dumps(tool, ensure_ascii=False, sort_keys=conversation.sorted_tools)
            for tool in conversation.tools
        )
        parts.append(
            "# Tools\n\nYou can call these functions:\n<tools>" + lines + "\n</tools>\n\n"
            "To call a function, answer with:\n<tool_call>\n"
            '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
        )
    if conversation.thinking:
        parts.append("/think")
    return "\n\n".join(parts)


def system_pieces(conversation: Conversation) -> list[Piece]:
    """Pieces of the system turn; none if its text is empty."""
    text = system_text(conversation)
    return [Piece(f"{START}system\n{text}{END}\n", Weight.CONTEXT)] if text else []


def exchange_pieces(
    conversation: Conversation, exchange: Exchange, shown: Shown = Shown.WHOLE
) -> list[Piece]:
    """Pieces of an exchange."""
    thinking = conversation.thinking
    pieces = [Piece(f"{START}user\n{exchange.ask}{END}\n", Weight.CONTEXT)]
    if exchange.calls:
        calls = "\n".join(
            f"<tool_call>\n{call.text(conversation.compact)}\n</tool_call>"
            for call in exchange.calls
        )
        responses = "".join(
            f"\n<tool_response>\n{result}\n</tool_response>" for result in exchange.results
        )
        pieces += _turn(exchange, calls, thinking, shown is Shown.WHOLE, exchange.thought)
        pieces.append(Piece(f"{START}user{responses}{END}\n", Weight.CONTEXT))
        thought: str | None = "The function has answered."
    else:
        thought = exchange.thought
    return pieces + _turn(exchange, exchange.answer, thinking, shown is not Shown.HISTORY, thought)


def _turn(
    exchange: Exchange, text: str, thinking: bool | None, with_thought: bool, thought: str | None
) -> list[Piece]:
    pieces = [Piece(f"{START}assistant\n", Weight.CONTEXT)]
    weight = exchange.weight
    if thinking and with_thought:
        pieces.append(Piece(f"<think>\n{thought or 'This is easy.'}\n</think>\n\n", weight))
    elif thinking:  # an answer without its reasoning is context only
        weight = Weight.CONTEXT
    elif thinking is not None and with_thought:  # empty reasoning is part of the prompt
        pieces.append(Piece("<think>\n\n</think>\n\n", Weight.NONE))
    return [*pieces, Piece(text + END, weight), Piece("\n", Weight.NONE)]


def messages(system: str, history: Sequence[Exchange], last: Exchange) -> list[dict[str, Any]]:
    """Messages in the format of OpenAI's API, up to the last question."""
    sent: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for exchange in history:
        sent += [*_question(exchange), {"role": "assistant", "content": exchange.answer}]
    return [*sent, *_question(last)]


def _question(exchange: Exchange) -> Iterable[dict[str, Any]]:
    yield {"role": "user", "content": exchange.ask}
    if not exchange.calls:
        return
    ids = [f"call_{number}" for number in range(len(exchange.calls))]
    yield {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": to_json(call.arguments, False)},
            }
            for call_id, call in zip(ids, exchange.calls, strict=True)
        ],
    }
    for call_id, result in zip(ids, exchange.results, strict=True):
        yield {"role": "tool", "tool_call_id": call_id, "content": result}
