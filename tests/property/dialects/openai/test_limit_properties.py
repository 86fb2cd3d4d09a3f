"""Limits of the options of a chat: bodies of HTTP requests and messages of gRPC have the same."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1.inference_service_pb2 import ChatRequest, Conversation
from corral.inference.v1.sampling_pb2 import SamplingParams
from corral.options.v1 import limit_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from dialects.openai.chat.chat_request import parse_chat
from dialects.shared.sampling import SamplingFields
from svc_kit.errors import DomainError
from svc_kit.rpc.field_limits import check_limits, limit_of

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
UNLIMITED = ("allowed_token_ids", "mirostat", "seed", "top_k")
"""Fields that are no options with a limit in a body, or have a reason in `OTHERS`."""
NAMES: dict[str, str] = {
    **{
        f"sampling.{name}": name
        for name in SamplingParams.DESCRIPTOR.fields_by_name
        if name in SamplingFields.model_fields and name not in UNLIMITED
    },
    "sampling.penalty_last_n": "repeat_last_n",
    "sampling.dry.multiplier": "dry_multiplier",
    "sampling.dry.base": "dry_base",
    "sampling.dry.allowed_length": "dry_allowed_length",
    "sampling.dry.penalty_last_n": "dry_penalty_last_n",
    "sampling.dry.sequence_breakers": "dry_sequence_breakers",
    "sampling.mirostat.version": "mirostat",
    "sampling.mirostat.tau": "mirostat_tau",
    "sampling.mirostat.eta": "mirostat_eta",
    "sampling.adaptive.target": "adaptive_target",
    "sampling.adaptive.decay": "adaptive_decay",
    "stopping.min_tokens": "min_tokens",
    "stopping.stop": "stop",
    "stopping.stop_token_ids": "stop_token_ids",
    "output.top_logprobs": "top_logprobs",
    "output.prompt_logprobs": "prompt_logprobs",
    "constraint.choices.values": "guided_choice",
    "adapters": "lora",
    "num_choices": "n",
    "speculation.max_draft_tokens": "speculation.max_draft_tokens",
}
"""The names of limited options in a body."""
OTHERS = {
    "sampling.top_k": "-1 is converted to 0",
    "sampling.logit_bias.bias": "below",
    "adapters.scale": "below",
    "adapters.adapter": "its id, which is required too",
    "stopping.max_tokens": "-1 is converted to unset",
    "thinking_budget_tokens": "of other fields",
    "label": "not a field of bodies",
    "cache.salt": "longer ones are digested",
    "cache.affinity": "longer ones are digested",
    "cache.keep_for": "not a field of bodies",
    "scheduling.queue_timeout": "not a field of bodies",
    "output.interval_ms": "not a field of bodies",
}
ITEMS: dict[str, Any] = {
    "sampling.logit_bias": {"token_id": 1, "bias": 1},
    "sampling.samplers": 4,
    "sampling.dry.sequence_breakers": "a",
    "stopping.stop": "a",
    "stopping.stop_token_ids": 1,
    "constraint.choices.values": "a",
    "adapters": {"adapter": "a"},
}
"""An item of each repeated option."""
IN_BODIES: dict[str, Any] = {
    "sampling.samplers": "top_k",
    "sampling.logit_bias": [1, 1],
    "adapters": {"id": "a"},
}
"""The same in a body, where it differs."""


def limited(descriptor: Any, path: str = "") -> Iterator[str]:
    for field in descriptor.fields:
        found = field.GetOptions().Extensions[limit_pb2.limit]
        if any(each.name != "name" for each, _ in found.ListFields()):
            yield path + field.name
        if field.message_type is not None:
            yield from limited(field.message_type, f"{path}{field.name}.")


def options(path: str, value: Any) -> ChatRequest:
    request = ChatRequest()
    *outer, name = path.split(".")
    message: Message = request.options
    for step in outer:
        message = getattr(message, step)
    if isinstance(value, list):
        for item in value:
            add = getattr(message, name)
            add.add(**item) if isinstance(item, dict) else add.append(item)
    else:
        setattr(message, name, value)
    return request


def body(name: str, value: Any) -> dict[str, Any]:
    """The body of such a chat."""
    head, _, rest = name.partition(".")
    return BODY | {head: {rest: value} if rest else value}


def refusal_of(call: Any, *arguments: Any) -> DomainError | None:
    try:
        call(*arguments)
    except DomainError as error:
        return error
    return None


def check_same(path: str, sent: Any, written: Any) -> None:
    """Assert that both refuse a value with the same reason, or neither does."""
    over_grpc = refusal_of(check_limits, options(path, sent))
    over_http = refusal_of(parse_chat, body(NAMES[path], written))

    assert type(over_grpc) is type(over_http), f"{sent}: {over_grpc!r}, {over_http!r}"


def field_of(path: str) -> FieldDescriptor:
    descriptor: Any = generation.GenerationOptions.DESCRIPTOR
    *outer, name = path.split(".")
    for step in outer:
        descriptor = descriptor.fields_by_name[step].message_type
    field: FieldDescriptor = descriptor.fields_by_name[name]
    return field


def bounds(path: str) -> list[float]:
    found = limit_of(generation.GenerationOptions, path)
    return [getattr(found, name) for name in ("gt", "gte", "lte") if found.HasField(name)]


NUMBERS = [path for path in NAMES if path not in ITEMS]


def test_each_limit_of_an_option_is_compared_or_has_a_reason() -> None:
    """A new limit needs the name of its field in bodies here."""
    paths = set(limited(generation.GenerationOptions.DESCRIPTOR))

    assert paths == NAMES.keys() | OTHERS.keys()


@pytest.mark.parametrize("path", NUMBERS)
def test_a_number_is_refused_over_grpc_and_http_alike(path: str) -> None:
    """At, below and above each bound, and anywhere near them."""
    is_float = field_of(path).type == FieldDescriptor.TYPE_FLOAT
    steps = (-0.001, 0, 0.001) if is_float else (-1, 0, 1)
    for bound in bounds(path):
        for step in steps:
            check_same(path, *as_sent(bound + step, is_float=is_float))

    @given(number=st.floats(min(bounds(path)) - 2, max(bounds(path)) + 2))
    def check_any(number: float) -> None:
        check_same(path, *as_sent(number, is_float=is_float))

    check_any()


def as_sent(number: float, *, is_float: bool) -> tuple[float, float]:
    """A number in a message, and in JSON with digits that a 32-bit float keeps."""
    if not is_float:
        return int(number), int(number)
    written = float(f"{round(number, 6):.7g}")
    return struct.unpack("f", struct.pack("f", written))[0], written


@pytest.mark.parametrize("path", ITEMS)
def test_a_list_is_refused_over_grpc_and_http_alike(path: str) -> None:
    """With as many items as are allowed, and one more."""
    most = limit_of(generation.GenerationOptions, path).max_items
    item = ITEMS[path]
    for number in (most, most + 1):
        check_same(path, [item] * number, [IN_BODIES.get(path, item)] * number)


@pytest.mark.parametrize("path", ["stopping.stop", "sampling.dry.sequence_breakers"])
@given(number=st.integers(0, 300), character=st.sampled_from("aé𝄞"))
def test_a_text_is_refused_over_grpc_and_http_alike(path: str, number: int, character: str) -> None:
    """By its bytes in UTF-8."""
    check_same(path, ["a", character * number], ["a", character * number])


@given(value=st.floats(-120, 120, width=16))
def test_a_bias_and_a_scale_are_refused_over_grpc_and_http_alike(value: float) -> None:
    """In the only item of a list."""
    check_same("sampling.logit_bias", [{"bias": value}], {"1": value})
    check_same("adapters", [{"adapter": "a", "scale": value}], [{"id": "a", "scale": value}])


@given(number=st.integers(125, 131))
def test_tools_are_refused_over_grpc_and_http_alike(number: int) -> None:
    """More than 128."""
    tool = {"type": "function", "function": {"name": "f"}}
    request = ChatRequest(conversation=Conversation(tools=[{"name": "f"}] * number))
    refusals = (
        refusal_of(check_limits, request),
        refusal_of(parse_chat, BODY | {"tools": [tool] * number}),
    )

    assert [refusal is not None for refusal in refusals] == [number > 128] * 2
