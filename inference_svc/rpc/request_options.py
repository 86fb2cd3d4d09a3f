"""Converts generation options to sequence requests; applies defaults and the limits that depend on
the model. Other limits are in the protos.

For an upstream in text mode, what OpenAI's API has no field for is refused by name; caching,
drafts, labels and priorities are hints.
"""

import secrets
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from corral.inference.v1 import chat_pb2
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as service_pb
from google.protobuf.duration_pb2 import Duration

from inference_svc.chat.chat_completions import prompt_fields
from inference_svc.chat.conversation import Conversation, MediaPart, Role
from inference_svc.chat.json_values import json_object
from inference_svc.engine.media import MediaSpan
from inference_svc.engine.request import MAX_DRAFT, NO_ADAPTERS, AdapterStack, SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine_client.features import NEUTRAL_SAMPLING
from inference_svc.limits.limiter import Need
from inference_svc.rpc.call import AnyCall, Call
from inference_svc.rpc.output_constraints import output_format
from inference_svc.rpc.prefix_policy import (
    archive_owner,
    cache_key,
    check_retention,
    may_reuse,
)
from inference_svc.sampling_messages import to_sampling
from inference_svc.structured_output.spec import OutputFormatKind
from inference_svc.validation import check_range, check_tokens
from svc_kit.errors import (
    ContextLengthExceeded,
    FeatureUnsupported,
    InvalidField,
    MissingField,
    TooLong,
)

MAX_PROMPT_LOGPROBS = 2**18
"""Log probabilities of a prompt, with alternatives: 262,144 tokens without, 12,483 with 20."""
_SENT_SAMPLING: Final = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
_SEEDS: Final = 1 << 31
"""Some services have seeds of 32 bits with a sign."""
_BYTES_PER_TOKEN: Final = 4
_PICTURE_TOKENS: Final = 1024
"""What a picture counts where the engine counts the tokens: those of most are fewer."""
_UNTOLD_OUTPUT: Final = 4096
"""Tokens that limits reserve for an answer if neither the request nor the engine tells a limit."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids and the request field that they come from, for errors. `media` are the spans of
    pictures and sounds. If the model has an encoder, it reads the tokens, and the decoder starts
    with `decoder_start`."""

    tokens: Sequence[int]
    field: str
    media: tuple[MediaSpan, ...] = ()
    decoder_start: int | None = None


def to_requests(
    call: AnyCall, prompt: Prompt, adapters: AdapterStack = NO_ADAPTERS
) -> list[SequenceRequest]:
    """Convert the options of a call to one `SequenceRequest` per choice; ids are assigned at
    admission.

    Raises the `DomainError` of the first invalid field.
    """
    options, model, principal = call.options, call.model, call.caller.principal
    stopping, output = options.stopping, options.output
    check_retention(options)
    _check_prompt(prompt, call)
    num_choices = call.num_choices
    sampling = to_sampling(options.sampling, model.default_sampling)
    sampling.validate(vocabulary_size=model.vocabulary.size, context_tokens=call.slot_tokens)
    tokens, source = array("i", prompt.tokens), array("i")
    if prompt.decoder_start is not None:
        _check_encoder_decoder(options)
        tokens, source = array("i", [prompt.decoder_start]), tokens
    template = SequenceRequest(
        sequence_id=-1,
        model=model.name,
        prompt=tokens,
        source=source,
        media=prompt.media,
        sampling=sampling,
        seed=_seed(options),
        choice=0,
        max_tokens=_max_tokens(stopping, len(tokens), call.slot_tokens),
        cache_key=cache_key(options.cache, call.owner, adapters),
        resumed=array("i"),
        priority=call.priority,
        project=call.project,
        deadline=call.caller.deadline,
        queue_deadline=_queue_deadline(options.scheduling),
        reuse=may_reuse(options) and not source,
        keep=options.cache.keep,
        keep_for=archive_owner(
            options,
            principal,
            call.loaded.digest,
            archives_stateless=call.archives_stateless and not source,
        ),
        deterministic=options.deterministic,
        max_draft=_max_draft(options),
        special_tokens=output.special_tokens,
        is_gathered=output.interval_ms > 0,
        adapters=adapters,
        top_logprobs=output.top_logprobs if output.HasField("top_logprobs") else None,
        prompt_logprobs=_prompt_logprobs(output, len(tokens)),
        request_id=call.caller.request_id,
        stop=tuple(stopping.stop),
        stop_tokens=frozenset(stopping.stop_token_ids),
        min_tokens=stopping.min_tokens,
        ignore_eos=stopping.ignore_eos,
        include_stop=stopping.include_stop,
    )
    _check_stopping(call)
    others = replace(template, prompt_logprobs=None)  # the prompt's are sent once
    requests = [template, *(replace(others, choice=i) for i in range(1, num_choices))]
    for choice in _checked_resume(call, sampling, len(tokens)):
        requests[choice.index] = replace(
            requests[choice.index],
            resumed=array("i", choice.output_token_ids),
            snapshot_id=choice.snapshot_id,
        )
    return requests


def _check_prompt(prompt: Prompt, call: AnyCall) -> None:
    count = len(prompt.tokens)
    if count == 0:
        raise MissingField(field=prompt.field)
    if prompt.decoder_start is None:
        is_too_long, limit = count >= call.slot_tokens, call.slot_tokens
    else:
        limit = call.loaded.ready.source_tokens
        is_too_long = count > limit
    if is_too_long:
        raise ContextLengthExceeded(field=prompt.field, prompt_tokens=count, context_tokens=limit)
    if not prompt.media:
        check_tokens(prompt.field, prompt.tokens, call.model.vocabulary.size)


def _check_encoder_decoder(options: generation.GenerationOptions) -> None:
    """Raise `FeatureUnsupported` for what depends on the prompt alone: the state of a decoder also
    depends on the source, the encoder computes all sources together and has no logits."""
    features = {
        "cache.keep": options.cache.keep,
        "cache.keep_for": bool(options.cache.keep_for),
        "resume.snapshot_id": any(choice.snapshot_id for choice in options.resume),
        "deterministic": options.deterministic,
        "prompt_logprobs": options.output.HasField("prompt_logprobs"),
    }
    for name, is_wanted in features.items():
        if is_wanted:
            raise FeatureUnsupported(feature=f"{name} with an encoder-decoder model")


def _seed(options: generation.GenerationOptions) -> int:
    if options.sampling.HasField("seed"):
        return options.sampling.seed
    return secrets.randbits(32)


def _max_tokens(stopping: generation.StoppingParams, prompt_tokens: int, slot_tokens: int) -> int:
    """The requested limit, at most the remaining context: a full context ends with LENGTH."""
    remaining = slot_tokens - prompt_tokens
    if not stopping.HasField("max_tokens"):
        return remaining
    return min(stopping.max_tokens, remaining)


def _check_stop_texts(stopping: generation.StoppingParams) -> None:
    if "" in stopping.stop:
        raise InvalidField(field="stop", problem="a stop text is empty")


def _check_stopping(call: AnyCall) -> None:
    stopping = call.options.stopping
    _check_stop_texts(stopping)
    check_tokens("stop_token_ids", stopping.stop_token_ids, call.model.vocabulary.size)
    check_range("min_tokens", stopping.min_tokens, 0, call.slot_tokens)


def _max_draft(options: generation.GenerationOptions) -> int:
    """Drafts are on by default, because they do not change the output, and off for deterministic
    requests, which are computed token by token."""
    speculation = options.speculation
    is_off = speculation.HasField("enabled") and not speculation.enabled
    if is_off or options.deterministic:
        return 0
    return min(speculation.max_draft_tokens or MAX_DRAFT, MAX_DRAFT)


def _prompt_logprobs(output: generation.OutputOptions, num_tokens: int) -> int | None:
    if not output.HasField("prompt_logprobs"):
        return None
    if (count := num_tokens * (1 + output.prompt_logprobs)) > MAX_PROMPT_LOGPROBS:
        raise TooLong(
            field="prompt_logprobs",
            length=count,
            limit=MAX_PROMPT_LOGPROBS,
            unit="log probabilities",
        )
    return output.prompt_logprobs


def _queue_deadline(scheduling: generation.SchedulingOptions) -> float | None:
    if not scheduling.HasField("queue_timeout"):
        return None
    return time.monotonic() + to_seconds(scheduling.queue_timeout)


def _checked_resume(
    call: AnyCall, sampling: Sampling, prompt_tokens: int
) -> Sequence[generation.ResumedChoice]:
    options = call.options
    indices: set[int] = set()
    if options.resume and not options.sampling.HasField("seed"):
        raise MissingField(field="seed")
    for choice in options.resume:
        check_range("resume.index", choice.index, 0, call.num_choices - 1)
        if choice.index in indices:
            problem = f"choice {choice.index} is named twice"
            raise InvalidField(field="resume.index", problem=problem)
        indices.add(choice.index)
        if sampling.has_hidden_state and not choice.snapshot_id:
            feature = "resume with mirostat or adaptive-p without a snapshot"
            raise FeatureUnsupported(feature=feature)
        field, num_tokens = "resume.output_token_ids", prompt_tokens + len(choice.output_token_ids)
        check_tokens(field, choice.output_token_ids, call.model.vocabulary.size)
        if num_tokens > (limit := call.slot_tokens):
            raise ContextLengthExceeded(field=field, prompt_tokens=num_tokens, context_tokens=limit)
    return options.resume


def to_seconds(span: Duration) -> float:
    """Convert a duration to seconds; it may be longer than a `timedelta` can be."""
    return span.seconds + span.nanos / 1e9


# --- text mode ------------------------------------------------------------------------------------


def text_requests(
    call: Call[service_pb.ChatRequest], conversation: Conversation, defaults: Sampling
) -> list[SequenceRequest]:
    """Convert a chat to one `SequenceRequest` per choice. Raises the `DomainError` of the first
    invalid field, and `FeatureUnsupported` for the first that the engine would not get."""
    options = call.options
    for name in _unsupported(call.request, conversation):
        raise FeatureUnsupported(feature=f"{name} with an engine in text mode")
    check_retention(options)
    _check_stop_texts(options.stopping)
    archive_owner(options, call.caller.principal, "")
    sampling = to_sampling(options.sampling, defaults)
    prompt = dict(prompt_fields(conversation))
    media_bytes = sum(_base64_size(part.data) for _, part in conversation.media)
    text_bytes = len(orjson.dumps(prompt)) - media_bytes
    chat = {**prompt, **_answer_fields(call, conversation, sampling)}
    template = SequenceRequest(
        sequence_id=-1,
        model=call.loaded.opened.name,
        prompt=array("i"),
        sampling=sampling,
        seed=_seed(options),
        choice=0,
        max_tokens=options.stopping.max_tokens,
        cache_key=b"",
        resumed=array("i"),
        priority=call.priority,
        project=call.project,
        deadline=call.caller.deadline,
        queue_deadline=_queue_deadline(options.scheduling),
        deterministic=options.deterministic,
        max_draft=0,
        top_logprobs=_optional(options.output, "top_logprobs"),
        prompt_logprobs=_optional(options.output, "prompt_logprobs"),
        request_id=call.caller.request_id,
        stop=tuple(options.stopping.stop),
        min_tokens=options.stopping.min_tokens,
        ignore_eos=options.stopping.ignore_eos,
        chat=chat,
        estimated_tokens=text_bytes // _BYTES_PER_TOKEN
        + len(conversation.media) * _PICTURE_TOKENS
        + 1,
        media_bytes=media_bytes,
    )
    if not options.sampling.HasField("seed"):
        return [replace(template, choice=i) for i in range(call.num_choices)]
    return [
        replace(template, choice=i, chat={**chat, "seed": (template.seed + i) % _SEEDS})
        for i in range(call.num_choices)
    ]


def _base64_size(data: bytes) -> int:
    return (len(data) + 2) // 3 * 4


def text_need(call: Call[service_pb.ChatRequest], request: SequenceRequest) -> Need:
    """What limits reserve for a chat: of an unlimited answer the rest of the context."""
    prompt_tokens, context = request.estimated_tokens, call.slot_tokens
    rest = max(context - prompt_tokens, 0) if context else _UNTOLD_OUTPUT
    return Need(prompt_tokens, request.max_tokens or rest, call.num_choices)


def ignored_in_text_mode(
    call: Call[service_pb.ChatRequest], conversation: Conversation
) -> list[str]:
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
    for message in conversation.messages:
        if message.role is not Role.USER and any(isinstance(p, MediaPart) for p in message.parts):
            yield f"a picture in a message of the role '{message.role.value}'"


def _optional(message: generation.OutputOptions, name: str) -> int | None:
    return getattr(message, name) if message.HasField(name) else None


def _answer_fields(
    call: Call[service_pb.ChatRequest], conversation: Conversation, sampling: Sampling
) -> dict[str, Any]:
    """The fields of the answer. Those of the sampling are sent if they are set, in the request or
    in the settings, since services have defaults of their own."""
    options = call.options
    fields: dict[str, Any] = {
        name: float(f"{getattr(sampling, name):.7g}")  # as it was before it became 32 bits
        for name in _SENT_SAMPLING
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


def _response_format(constraint: generation.Constraint) -> Mapping[str, Any] | None:
    form = output_format(constraint)
    if form is None:
        return None
    if constraint.WhichOneof("form") == "json_object":
        return {"type": "json_object"}
    json_object(form.text, form.field)
    schema = orjson.Fragment(form.text)
    return {
        "type": OutputFormatKind.JSON_SCHEMA.value,
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }
