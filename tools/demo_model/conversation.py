"""What a training conversation consists of, and its text: the chat template, written once more.

Training needs to know which characters are the model's own words, which no rendered template tells.
So the text is put together here from pieces with weights; a test renders the same conversations
through `chat_template.jinja`, the file that goes into the GGUF, and compares.
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
"""A function as OpenAI's API describes it."""


class Weight(IntEnum):
    """How much a token counts in the loss; the code that stands in the corpus files."""

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
    """How much of an exchange's thoughts is there: servers take them out of earlier turns."""

    WHOLE = "with every thought"
    ANSWERING = "with the last thought: the calls before it are already earlier turns"
    HISTORY = "without any"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function; `arguments` in the order in which they are written."""

    name: str
    arguments: dict[str, Any]

    def text(self, compact: bool) -> str:
        """The call as the model writes it."""
        if compact:
            return f'{{"name":"{self.name}","arguments":{to_json(self.arguments, True)}}}'
        return f'{{"name": "{self.name}", "arguments": {to_json(self.arguments, False)}}}'


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a user says and how the assistant answers, with a tool's work in between, if any.

    `key` names the question itself, without its ornaments: keys decide what the trainer never sees.
    `shown` are the keys of other questions that the thought answers on its way.
    `short` is the answer in one word, `gist` what a summary says of the exchange, `thought` what is
    thought before answering. With `calls`, the assistant calls first and `results` come back.
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
    """Text that has one weight."""

    text: str
    weight: Weight


@dataclass(slots=True)
class Conversation:
    """A system turn's content and the exchanges that follow it."""

    system: str = ""
    tools: list[Tool] = field(default_factory=list)
    sorted_tools: bool = False
    compact: bool = False
    thinking: bool | None = None
    exchanges: list[Exchange] = field(default_factory=list)


def to_json(value: Any, compact: bool) -> str:
    """JSON as the model writes it: on one line, keys in their order, no escapes of letters."""
    separators = (",", ":") if compact else (", ", ": ")
    return json.dumps(value, ensure_ascii=False, separators=separators)


def system_text(conversation: Conversation) -> str:
    """The system turn's whole text: the content, the tools, the wish to think."""
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
    """The system turn; nothing where there is nothing to say."""
    text = system_text(conversation)
    return [Piece(f"{START}system\n{text}{END}\n", Weight.CONTEXT)] if text else []


def exchange_pieces(
    conversation: Conversation, exchange: Exchange, shown: Shown = Shown.WHOLE
) -> list[Piece]:
    """One exchange as it is trained."""
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
    elif thinking:  # an answer without a thought is only shown, never learned
        weight = Weight.CONTEXT
    elif thinking is not None and with_thought:  # the empty thought is part of the prompt
        pieces.append(Piece("<think>\n\n</think>\n\n", Weight.NONE))
    return [*pieces, Piece(text + END, weight), Piece("\n", Weight.NONE)]


def messages(system: str, history: Sequence[Exchange], last: Exchange) -> list[dict[str, Any]]:
    """The conversation as OpenAI's API takes it, up to the last answer, which is asked for."""
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
