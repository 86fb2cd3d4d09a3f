"""Limits of fields in protos: what they refuse, and what fields of Pydantic models have of them."""

import importlib
import pkgutil
from contextlib import suppress
from typing import Annotated, Any

import pytest
from corral.control import v1 as control
from corral.control.v1 import assistant_service_pb2, file_service_pb2, run_service_pb2
from corral.inference import v1 as inference
from corral.inference.v1 import adapter_pb2, sampling_pb2
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb
from corral.options.v1 import limit_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from pydantic import TypeAdapter, ValidationError

from svc_kit.errors import DomainError, MissingField, OutOfRange, TooLong
from svc_kit.rpc.field_limits import check_limits, limit


def chat(**options: Any) -> pb.ChatRequest:
    return pb.ChatRequest(options=generation.GenerationOptions(**options))


def sampled(**params: Any) -> pb.ChatRequest:
    return chat(sampling=sampling_pb2.SamplingParams(**params))


NO_NUMBER = float("nan")
REFUSED: list[tuple[Message, DomainError]] = [
    (sampled(top_p=1.5), OutOfRange(field="top_p", value=1.5, minimum=0, maximum=1)),
    (sampled(top_p=NO_NUMBER), OutOfRange(field="top_p", value=NO_NUMBER, minimum=0, maximum=1)),
    (
        sampled(repetition_penalty=0),
        OutOfRange(field="repetition_penalty", value=0.0, minimum=0, maximum=10),
    ),
    (sampled(min_keep=-1), OutOfRange(field="min_keep", value=-1, minimum=0)),
    (
        sampled(adaptive={"decay": 0.991}),
        OutOfRange(field="adaptive.decay", value=0.991, minimum=0, maximum=0.99),
    ),
    (
        sampled(logit_bias=[{"bias": 1}, {"bias": 101}]),
        OutOfRange(field="logit_bias[1].bias", value=101.0, minimum=-100, maximum=100),
    ),
    (
        chat(stopping={"stop": ["a", "é" * 129]}),
        TooLong(field="stop[1]", length=258, limit=256, unit="bytes"),
    ),
    (chat(stopping={"stop": ["a"] * 17}), TooLong(field="stop", length=17, limit=16)),
    (chat(num_choices=0), OutOfRange(field="n", value=0, minimum=1, maximum=128)),
    (
        chat(adapters=[adapter_pb2.AdapterScale(scale=1)]),
        MissingField(field="adapters[0].adapter"),
    ),
    (chat(constraint={"choices": {}}), MissingField(field="constraint.choices")),
    (
        chat(scheduling={"queue_timeout": Duration(seconds=-1)}),
        OutOfRange(field="queue_timeout", value=-1, minimum=0, maximum=315_576_000_000),
    ),
    (run_service_pb2.CreateRunRequest(), MissingField(field="assistant_id")),
    (
        assistant_service_pb2.CreateAssistantRequest(new_vector_stores=[{}, {}]),
        TooLong(field="tool_resources.file_search.vector_stores", length=2, limit=1),
    ),
    (
        run_service_pb2.SubmitToolOutputsRequest(outputs=[{}] * 4097),
        TooLong(field="tool_outputs", length=4097, limit=4096),
    ),
    (pb.RerankRequest(documents=["a"]), MissingField(field="query")),
    (pb.RerankRequest(query="a", documents=["a", ""]), MissingField(field="documents[1]")),
    (
        engine_pb.WatchLoadRequest(interval=Duration(nanos=99_000_000)),
        OutOfRange(field="interval", value=0.099, minimum=0.1, maximum=315_576_000_000),
    ),
]


@pytest.mark.parametrize(("message", "error"), REFUSED, ids=[each.message for _, each in REFUSED])
def test_what_is_beyond_a_limit_is_refused(message: Message, error: DomainError) -> None:
    """The error has the field, without messages that have no name in errors, and the limit."""
    with pytest.raises(type(error)) as caught:
        check_limits(message)

    assert caught.value == error


ACCEPTED: dict[str, Message] = {
    "nothing": pb.ChatRequest(),
    "empty options": chat(),
    "empty sampling": sampled(),
    "least": sampled(top_p=0, repetition_penalty=0.01, penalty_last_n=-1, adaptive={"target": -1}),
    "greatest": sampled(adaptive={"decay": 0.99}, top_n_sigma=1000, mirostat={"version": 2}),
    "longest": chat(stopping={"stop": ["é" * 128] * 16}, label="a" * 256),
    "shortest time": engine_pb.WatchLoadRequest(interval=Duration(nanos=100_000_000)),
    "no time": engine_pb.WatchLoadRequest(),
    "bytes instead of the header": file_service_pb2.CreateFileRequest(chunk=b"a"),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_unset_or_at_a_limit_is_accepted(case: str) -> None:
    """Also 0.99 as a 32-bit float, which is slightly larger."""
    check_limits(ACCEPTED[case])


def test_a_message_in_another_has_a_path() -> None:
    """It is before the names of its fields."""
    with pytest.raises(OutOfRange) as caught:
        check_limits(sampling_pb2.SamplingParams(top_p=2), "settings.")

    assert caught.value.field == "settings.top_p"


@pytest.mark.parametrize(
    ("path", "kind", "schema"),
    [
        ("top_p", float, {"minimum": 0, "maximum": 1}),
        ("repetition_penalty", float, {"exclusiveMinimum": 0, "maximum": 10}),
        ("min_keep", int, {"minimum": 0, "maximum": 2**31 - 1}),
        ("dry.sequence_breakers", list[str], {"maxItems": 64}),
    ],
)
def test_a_field_of_a_body_has_the_same_limit(path: str, kind: Any, schema: dict[str, Any]) -> None:
    """In its schema too; integers are those of 32 bits."""
    annotated = Annotated[kind, limit(sampling_pb2.SamplingParams, path)]

    assert schema.items() <= TypeAdapter(annotated).json_schema().items()


def test_items_of_a_body_have_their_limit_in_bytes() -> None:
    """Of UTF-8."""
    breaker = limit(sampling_pb2.SamplingParams, "dry.sequence_breakers[]")
    adapter: TypeAdapter[str] = TypeAdapter(Annotated[str, breaker])

    assert adapter.validate_python("é" * 20) == "é" * 20
    with pytest.raises(ValidationError, match="more than 40 bytes"):
        adapter.validate_python("é" * 21)


def test_a_message_may_contain_others_of_its_type() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="node.proto", syntax="proto3")
    node = file.message_type.add(name="Node")
    text = node.field.add(name="text", number=1, label=1, type=9)
    options: Any = text.options
    options.Extensions[limit_pb2.limit].max_len = 1
    node.field.add(name="next", number=2, label=1, type=11, type_name=".Node")
    pool = descriptor_pool.DescriptorPool()
    for each in (descriptor_pb2.DESCRIPTOR, limit_pb2.DESCRIPTOR):
        pool.AddSerializedFile(each.serialized_pb)
    pool.Add(file)
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("Node"))

    check_limits(kind(text="a", next=kind(text="b")))
    with pytest.raises(TooLong) as caught:
        check_limits(kind(next=kind(next=kind(text="ab"))))
    assert caught.value.field == "next.next.text"


def test_the_limits_of_all_requests_can_be_checked() -> None:
    """Of each type of message."""
    for package in (control, inference):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if module.name.endswith("_pb2"):
                for kind in vars(importlib.import_module(module.name)).values():
                    if isinstance(kind, type) and issubclass(kind, Message):
                        with suppress(MissingField):
                            check_limits(kind())


def test_a_field_without_a_limit_has_none_for_bodies() -> None:
    """The body's module cannot be imported."""
    with pytest.raises(TypeError, match=r"SamplingParams.seed has no limit"):
        limit(sampling_pb2.SamplingParams, "seed")
