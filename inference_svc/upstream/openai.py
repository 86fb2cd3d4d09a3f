"""OpenAI's API of chat completions, as any engine or service has it that does not tell token ids.

What it honours is not probed: every service has its own subset, and some are paid by the token.
"""

from typing import Any, Final, NamedTuple
from uuid import uuid4

from inference_svc.engine.constraint import OutputFormatKind
from inference_svc.engine.events import CallPart, MessagePart
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine_client.features import Features
from inference_svc.upstream.endpoint import Endpoint, parse_json
from inference_svc.upstream.engine_api import (
    EngineInfo,
    members,
    positive,
    raise_error,
    served_model,
)
from inference_svc.upstream.faults import AnswerInvalid, EngineUnusable, RequestRefused, excerpt
from inference_svc.upstream.target import UpstreamTarget

FEATURES: Final = Features(
    engine="openai (text mode)",
    sampling=frozenset({"top_p", "frequency_penalty", "presence_penalty"}),
    constraints=frozenset({OutputFormatKind.JSON_SCHEMA}),
)
_MAX_COUNT: Final = 1 << 31
_MAX_CALLS: Final = 1024
_REASONING_FIELDS: Final = ("reasoning_content", "reasoning")


class OpenAi:
    """The API of an engine or service with OpenAI's routes, below the path of its URL."""

    name = "openai"

    async def info(self, endpoint: Endpoint, target: UpstreamTarget) -> EngineInfo:
        """A service without a list of models has the named one."""
        model = target.model
        try:
            chosen = await served_model(endpoint, model, "/models")
        except RequestRefused as fault:
            if not model:
                problem = "it does not list its models: name one of them"
                raise EngineUnusable(f"{problem} ({fault})") from None
            return EngineInfo("", model)
        return EngineInfo(
            version="",
            model=str(chosen.get("id", "")),
            revision=str(chosen.get("root") or ""),
            context_tokens=positive(chosen.get("max_model_len"))
            or positive(chosen.get("context_length")),
        )


def chat_completion(
    request: SequenceRequest, model: str, limit_field: str
) -> tuple[str, dict[str, Any]]:
    """The path and the JSON of a request that is streamed, with the name of its `max_tokens`."""
    body = {"model": model, **(request.chat or {})}
    if "max_tokens" in body:
        body[limit_field] = body.pop("max_tokens")
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    return "/chat/completions", {**body, **streamed}


class Usage(NamedTuple):
    """The tokens that an engine counted. What it has cached is not told: it has no salts, so that
    it would tell what other projects have sent."""

    prompt: int
    output: int
    reasoning: int


class Event(NamedTuple):
    """What an event of a stream tells."""

    part: MessagePart | None = None
    finish_reason: str = ""
    usage: Usage | None = None
    is_last: bool = False


class MessageReader:
    """Reads the events of one answer."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        """Of the calls so far."""
        self._positions: dict[int, int] = {}
        """Of the last call with an index."""

    def read(self, data: bytes) -> Event:
        """Read the data of an event. Raises `EngineFault`."""
        if data == b"[DONE]":
            return Event(is_last=True)
        event = members(parse_json(data), "an event")
        if event.get("error"):
            raise_error(event["error"])
        usage, choices = _usage(event.get("usage")), event.get("choices")
        if not isinstance(choices, list):
            raise AnswerInvalid("an event has no choices")
        if not choices:
            return Event(usage=usage)
        choice = members(choices[0], "a choice")
        if len(choices) > 1 or choice.get("index") not in (None, 0):
            raise AnswerInvalid("it answered with more choices than one")
        reason = choice.get("finish_reason") or ""
        if not isinstance(reason, str):
            raise AnswerInvalid(f"its finish_reason is no text: {excerpt(str(reason))}")
        if reason in ("abort", "error"):
            raise_error({"message": f"finish_reason {reason}"})
        return Event(self._part(members(choice.get("delta") or {}, "a delta")), reason, usage)

    def _part(self, delta: dict[str, Any]) -> MessagePart | None:
        reasoning = next((text for name in _REASONING_FIELDS if (text := _text(delta, name))), "")
        content = _text(delta, "content") + _text(delta, "refusal")
        calls = delta.get("tool_calls") or []
        if not isinstance(calls, list):
            raise AnswerInvalid(f"its tool_calls are no list: {excerpt(str(calls))}")
        part = MessagePart(reasoning, content, tuple(map(self._call, calls)))
        return part if any(part) else None

    def _call(self, value: Any) -> CallPart:
        """A piece of a call. Engines that write whole calls may leave out the index, or repeat it
        with another id."""
        call = members(value, "a tool call")
        function = members(call.get("function") or {}, "the function of a tool call")
        given, name = _text(call, "id"), _text(function, "name")
        arguments, index = _text(function, "arguments"), call.get("index")
        if index is not None and type(index) is not int:
            raise AnswerInvalid(f"the index of its tool call is no number: {excerpt(str(index))}")
        if index is None:
            position = len(self._ids) - 1 if self._ids and not name else None
        else:
            position = self._positions.get(index)
        if position is not None and not (name and given not in ("", self._ids[position])):
            return CallPart(position, "", "", arguments)
        if not name or len(self._ids) >= _MAX_CALLS:
            raise AnswerInvalid(f"its tool calls have no name, or are more than {_MAX_CALLS}")
        position = len(self._ids)
        self._ids.append(given or f"call_{uuid4().hex}")
        if index is not None:
            self._positions[index] = position
        return CallPart(position, self._ids[position], name, arguments)


def _text(values: dict[str, Any], name: str) -> str:
    text = values.get(name)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise AnswerInvalid(f"its {name} is no text: {excerpt(str(text))}")
    return text


def _usage(value: Any) -> Usage | None:
    """Told counts; None if they are missing or cannot be."""
    told = value if isinstance(value, dict) else {}
    prompt, output = (_count(told.get(f"{name}_tokens")) for name in ("prompt", "completion"))
    if prompt is None or output is None:
        return None
    details = told.get("completion_tokens_details")
    reasoning = _count(details.get("reasoning_tokens")) if isinstance(details, dict) else None
    return Usage(prompt, output, min(reasoning or 0, output))


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MAX_COUNT else None
