"""OpenAI's API of chat completions, as any engine or service has it that does not tell token ids.

What it honours is not probed, but for log probabilities: every service has its own subset, and some
are paid by the token.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

from inference_svc.engine.events import CallPart, ChosenLogprob, Logprob, MessagePart
from inference_svc.engine_client.features import Features
from inference_svc.output_format import OutputFormatKind
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
_MAX_WAITING: Final = 64
"""Tokens without text whose log probabilities are kept."""
_MAX_MARKERS: Final = 4
"""Tokens behind a text that are not in it, such as the end of the turn."""
_UNTOLD_ID: Final = 0
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
    fields: Mapping[str, Any], model: str, limit_field: str, top_logprobs: int | None
) -> tuple[str, dict[str, Any]]:
    """The path and the JSON of a request that is streamed, with the name of its `max_tokens`, and
    with `top_logprobs` alternatives of each token; None: without log probabilities."""
    body = {"model": model, **fields}
    if top_logprobs is not None:
        body["logprobs"] = True
    if top_logprobs:  # 0 is no log probabilities to llama-server, which sends 20 if it is unset
        body["top_logprobs"] = top_logprobs
    if "max_tokens" in body:
        body[limit_field] = body.pop("max_tokens")
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    return "/chat/completions", {**body, **streamed}


class Usage(NamedTuple):
    """The tokens that an engine counted. What it has cached is not passed on: it has no salts, so
    that it would show what other projects have sent."""

    prompt: int
    output: int
    reasoning: int


class Event(NamedTuple):
    """What an event of a stream contains."""

    part: MessagePart | None = None
    finish_reason: str = ""
    usage: Usage | None = None
    is_last: bool = False


class MessageReader:
    """Reads the events of one answer, with at most `top_logprobs` alternatives of each token of the
    content; None: without log probabilities. `has_logprobs`: the engine has sent some."""

    def __init__(self, top_logprobs: int | None = None) -> None:
        self.has_logprobs = False
        self._num_top = top_logprobs
        self._waiting: list[ChosenLogprob] = []
        """The tokens since the last text."""
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
        part = self._part(members(choice.get("delta") or {}, "a delta"))
        if self._num_top is not None:
            part = part._replace(logprobs=self._logprobs(choice.get("logprobs"), part))
        return Event(part if any(part) else None, reason, usage)

    def _part(self, delta: dict[str, Any]) -> MessagePart:
        reasoning = next((text for name in _REASONING_FIELDS if (text := _text(delta, name))), "")
        content = _text(delta, "content") + _text(delta, "refusal")
        calls = delta.get("tool_calls") or []
        if not isinstance(calls, list):
            raise AnswerInvalid(f"its tool_calls are no list: {excerpt(str(calls))}")
        return MessagePart(reasoning, content, tuple(map(self._call, calls)))

    def _logprobs(self, told: Any, part: MessagePart) -> tuple[ChosenLogprob, ...]:
        """Those of the tokens that are the content of a part. A token without text may be the begin
        of a character: it waits for the next part. What belongs to reasoning and calls is dropped.
        """
        entries = members(told or {}, "its logprobs").get("content") or []
        if not isinstance(entries, list):
            raise AnswerInvalid(f"its logprobs are no list: {excerpt(str(entries))}")
        new = [self._chosen(members(each, "a log probability")) for each in entries]
        self.has_logprobs |= bool(new)
        waiting = [*self._waiting, *new]
        if not any(part):
            self._waiting = waiting[-_MAX_WAITING:]
            return ()
        self._waiting = []
        if part.reasoning or part.calls:
            return ()
        return tuple(_spelling(waiting, part.content.encode()) or new)

    def _chosen(self, entry: dict[str, Any]) -> ChosenLogprob:
        top = entry.get("top_logprobs") or []
        if not isinstance(top, list):
            raise AnswerInvalid(f"its top_logprobs are no list: {excerpt(str(top))}")
        others = (_logprob(members(each, "an alternative")) for each in top[: self._num_top])
        chosen = _logprob(entry)
        return ChosenLogprob(chosen, tuple(others), text=chosen.piece)

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


def _logprob(entry: dict[str, Any]) -> Logprob:
    value, data = entry.get("logprob"), entry.get("bytes")
    if not isinstance(value, int | float):
        raise AnswerInvalid(f"a log probability is no number: {excerpt(str(value))}")
    value = min(value, 0.0)  # rounding may make it more
    if data is None:
        return Logprob(_UNTOLD_ID, _text(entry, "token").encode(), value)
    try:
        return Logprob(_UNTOLD_ID, bytes(data if isinstance(data, list) else [data]), value)
    except (TypeError, ValueError):
        raise AnswerInvalid(f"the bytes of a token are none: {excerpt(str(data))}") from None


def _spelling(tokens: Sequence[ChosenLogprob], content: bytes) -> Sequence[ChosenLogprob]:
    """The last tokens that spell a text; of the first one, what is in it. None if none do."""
    for end in range(len(tokens), max(len(tokens) - _MAX_MARKERS, 0), -1):
        begin, size = end, 0
        while begin and size < len(content):
            begin -= 1
            size += len(tokens[begin].chosen.piece)
        spelling = tokens[begin:end]
        if b"".join(each.chosen.piece for each in spelling).endswith(content):
            first, *others = spelling
            piece = first.chosen.piece[max(size - len(content), 0) :]
            return [first._replace(chosen=first.chosen._replace(piece=piece), text=piece), *others]
    return ()


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
