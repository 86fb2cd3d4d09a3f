"""Chats over an upstream in text mode: the request as OpenAI's API has it, and the answer.

What that API has no field for is refused by name. Caching, drafts, labels and priorities are hints.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson
from corral.inference.v1 import chat_pb2
from corral.inference.v1 import generation_pb2 as pb
from corral.inference.v1 import inference_service_pb2 as service_pb

from inference_svc.chat.conversation import (
    Conversation,
    MediaPart,
    Message,
    Role,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolSpec,
)
from inference_svc.chat.json_values import json_object
from inference_svc.engine import events
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine_client.features import NEUTRAL_SAMPLING
from inference_svc.limits.limiter import Need
from inference_svc.rpc.call import Call
from inference_svc.rpc.output_constraints import output_format
from inference_svc.rpc.prefix_policy import check_retention, resolve_stored_object
from inference_svc.rpc.request_options import check_stop_texts, queue_deadline, seed_of
from inference_svc.rpc.streaming import Turn
from inference_svc.sampling_messages import to_sampling
from inference_svc.structured_output.spec import OutputFormatKind
from svc_kit.errors import FeatureUnsupported

_SAMPLING: Final = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
_SEEDS: Final = 1 << 31
"""Some services have seeds of 32 bits with a sign."""
_BYTES_PER_TOKEN: Final = 4
_UNTOLD_OUTPUT: Final = 4096
"""Tokens that limits reserve for an answer if neither the request nor the engine tells a limit."""


def text_requests(
    call: Call[service_pb.ChatRequest], conversation: Conversation, defaults: Sampling
) -> list[SequenceRequest]:
    """Convert a chat to one `SequenceRequest` per choice. Raises the `DomainError` of the first
    invalid field, and `FeatureUnsupported` for the first that the engine would not get."""
    options = call.options
    for name in _unsupported(call.request, conversation):
        raise FeatureUnsupported(feature=f"{name} with an engine in text mode")
    check_retention(options)
    check_stop_texts(options.stopping)
    resolve_stored_object(options, call.caller.principal, "")
    sampling = to_sampling(options.sampling, defaults)
    prompt = dict(_prompt(conversation))
    chat = {**prompt, **_answer_fields(call, conversation, sampling)}
    template = SequenceRequest(
        sequence_id=-1,
        model=call.loaded.opened.name,
        prompt=array("i"),
        sampling=sampling,
        seed=seed_of(options),
        choice=0,
        max_tokens=options.stopping.max_tokens,
        cache_key=b"",
        resumed=array("i"),
        priority=call.priority,
        project=call.project,
        deadline=call.caller.deadline,
        queue_deadline=queue_deadline(options.scheduling),
        deterministic=options.deterministic,
        max_draft=0,
        top_logprobs=_optional(options.output, "top_logprobs"),
        prompt_logprobs=_optional(options.output, "prompt_logprobs"),
        request_id=call.caller.request_id,
        stop=tuple(options.stopping.stop),
        min_tokens=options.stopping.min_tokens,
        ignore_eos=options.stopping.ignore_eos,
        chat=chat,
        estimated_tokens=len(orjson.dumps(prompt)) // _BYTES_PER_TOKEN + 1,
    )
    if not options.sampling.HasField("seed"):
        return [replace(template, choice=i) for i in range(call.num_choices)]
    return [
        replace(template, choice=i, chat={**chat, "seed": (template.seed + i) % _SEEDS})
        for i in range(call.num_choices)
    ]


def text_need(call: Call[service_pb.ChatRequest], request: SequenceRequest) -> Need:
    """What limits reserve for a chat: of an unlimited answer the rest of the context."""
    prompt_tokens, context = request.estimated_tokens, call.slot_tokens
    rest = max(context - prompt_tokens, 0) if context else _UNTOLD_OUTPUT
    return Need(prompt_tokens, request.max_tokens or rest, call.num_choices)


def ignored_options(call: Call[service_pb.ChatRequest], conversation: Conversation) -> list[str]:
    """The options without effect: OpenAI's API has no switch of reasoning, only its efforts."""
    ignored = []
    if conversation.options.enable_thinking is not None:
        ignored.append("enable_thinking")
    if call.options.output.token_ids:
        ignored.append("output.token_ids")
    return ignored


def _unsupported(request: service_pb.ChatRequest, conversation: Conversation) -> Iterator[str]:
    """The names of the fields that cannot be sent."""
    options, template = request.options, conversation.options
    form = options.constraint.WhichOneof("form") or ""
    stopping, output = options.stopping, options.output
    refused = {
        "'resume'": bool(options.resume),
        "'adapters'": bool(options.adapters),
        "'thinking_budget_tokens'": options.HasField("thinking_budget_tokens"),
        "'cache.keep'": options.cache.keep,
        "'stop_token_ids'": bool(stopping.stop_token_ids),
        "'include_stop'": stopping.include_stop,
        "'max_tokens' of 0": stopping.HasField("max_tokens") and not stopping.max_tokens,
        "'special_tokens'": output.special_tokens,
        "'prompt_token_ids'": output.prompt_token_ids,
        f"'constraint.{form}'": form not in ("", "json_schema", "json_object"),
        "'chat_template'": template.template is not None,
        "'chat_template_kwargs'": bool(template.kwargs_json),
        "'continue_final_message'": conversation.continues_final_message,
        "'require_thinking'": template.require_thinking and bool(template.enable_thinking),
        "'reasoning_format' inline": (request.reasoning_format == chat_pb2.REASONING_FORMAT_INLINE),
    }
    yield from (name for name, is_set in refused.items() if is_set)


def _optional(message: pb.OutputOptions, name: str) -> int | None:
    return getattr(message, name) if message.HasField(name) else None


# --- requests -------------------------------------------------------------------------------------


def _prompt(conversation: Conversation) -> Iterator[tuple[str, Any]]:
    """The fields that the prompt is made from. Of the tools, only those that may be called."""
    yield "messages", [dict(_message(each)) for each in conversation.messages]
    allowed = conversation.tool_choice.allowed_names
    tools = [each for each in conversation.tools if not allowed or each.name in allowed]
    if tools:
        yield "tools", [_tool(each) for each in tools]
        yield from _tool_choice(conversation.tool_choice)


def _message(message: Message) -> Iterator[tuple[str, Any]]:
    """OpenAI's `developer` is not known everywhere."""
    yield "role", "system" if message.role is Role.DEVELOPER else message.role.value
    texts = [part.text for part in message.parts if not isinstance(part, MediaPart)]
    if len(texts) == 1 or message.role is Role.TOOL:
        yield "content", message.text
    else:
        yield "content", [{"type": "text", "text": text} for text in texts] or None
    if message.reasoning:
        yield "reasoning_content", message.reasoning
    if message.tool_calls:
        yield "tool_calls", [_call(each) for each in message.tool_calls]
    if message.tool_call_id:
        yield "tool_call_id", message.tool_call_id
    if message.name:
        yield "name", message.name


def _call(call: ToolCall) -> Mapping[str, Any]:
    function = {"name": call.name, "arguments": call.arguments_json}
    return {"id": call.id, "type": "function", "function": function}


def _tool(tool: ToolSpec) -> Mapping[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters_json:
        function["parameters"] = json_object(tool.parameters_json, "tools")
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> Iterator[tuple[str, Any]]:
    if choice.mode is ToolMode.REQUIRED and len(choice.allowed_names) == 1:
        function = {"name": choice.allowed_names[0]}
        yield "tool_choice", {"type": "function", "function": function}
    elif choice.mode is not ToolMode.AUTO:
        yield "tool_choice", choice.mode.value
    if not choice.parallel:
        yield "parallel_tool_calls", False


def _answer_fields(
    call: Call[service_pb.ChatRequest], conversation: Conversation, sampling: Sampling
) -> dict[str, Any]:
    """The fields of the answer. Those of the sampling are sent if they are set, in the request or
    in the settings, since services have defaults of their own."""
    options = call.options
    fields: dict[str, Any] = {
        name: float(f"{getattr(sampling, name):.7g}")  # as it was before it became 32 bits
        for name in _SAMPLING
        if options.sampling.HasField(name)
        or getattr(sampling, name) != getattr(NEUTRAL_SAMPLING, name)
    }
    if options.stopping.max_tokens:
        fields["max_tokens"] = options.stopping.max_tokens
    if options.stopping.stop:
        fields["stop"] = list(options.stopping.stop)
    if conversation.options.reasoning_effort is not None:
        fields["reasoning_effort"] = conversation.options.reasoning_effort.value
    if (response_format := _response_format(options.constraint)) is not None:
        fields["response_format"] = response_format
    return fields


def _response_format(constraint: pb.Constraint) -> Mapping[str, Any] | None:
    form = output_format(constraint)
    if form is None:
        return None
    if constraint.WhichOneof("form") == "json_object":
        return {"type": "json_object"}
    schema = json_object(form.text, form.field)
    return {
        "type": OutputFormatKind.JSON_SCHEMA.value,
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


# --- answers --------------------------------------------------------------------------------------


class MessageTurn(Turn[service_pb.ChatResponse]):
    """The parts of a message that the engine has parsed, for `Chat`; calls beyond `max_calls` are
    dropped."""

    response_type = service_pb.ChatResponse

    def __init__(self, index: int, *, max_calls: int | None = None) -> None:
        super().__init__(index, token_ids=False)
        self._max_calls = max_calls
        self._has_calls = False

    def delta(self, output: events.Delta) -> Sequence[service_pb.ChatResponse]:
        """The parts in as few deltas as their order allows."""
        responses = [service_pb.ChatResponse()]
        for part in output.parts:
            last = responses[-1].delta
            if _follows(part, last):
                last.is_continued, last.index = True, self._index
                responses.append(service_pb.ChatResponse())
            self._add(part, responses[-1].delta)
        self._write_tokens(output, responses[-1].delta)
        return responses

    def reason(self, finished: events.Finished) -> pb.FinishReason:
        if self._has_calls and finished.reason is events.FinishReason.STOP:
            return pb.FINISH_REASON_TOOL_CALLS
        return super().reason(finished)

    def _add(self, part: events.MessagePart, delta: service_pb.ChatDelta) -> None:
        delta.reasoning += part.reasoning
        delta.content += part.content
        for call in part.calls:
            self._has_calls = True
            if self._max_calls is not None and call.position >= self._max_calls:
                continue
            if not call.id and delta.tool_calls and delta.tool_calls[-1].index == call.position:
                delta.tool_calls[-1].arguments_json += call.arguments
            else:
                delta.tool_calls.add(
                    index=call.position, id=call.id, name=call.name, arguments_json=call.arguments
                )


def _follows(part: events.MessagePart, delta: service_pb.ChatDelta) -> bool:
    """Whether a part must be in a delta of its own: in one, reasoning comes before the content, and
    that before calls."""
    if part.reasoning:
        return bool(delta.content or delta.tool_calls)
    return bool(part.content and delta.tool_calls)
