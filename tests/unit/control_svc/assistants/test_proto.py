"""Assistants whose options an older release stored without checking them."""

from typing import Any

import pytest
from corral.control.v1 import assistant_pb2
from corral.inference.v1 import generation_pb2, sampling_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from control_svc.assistants.model import AssistantSettings
from control_svc.assistants.proto import assistant_edit
from control_svc.inference.generation_options import OPTIONS, GenerationOptions
from svc_kit.errors import DomainError, InvalidField, MissingField, UnsupportedField

_UNKNOWN_SAMPLER = 99


def _unreadable_options() -> GenerationOptions:
    sampling = sampling_pb2.SamplingParams()
    sampling.samplers.append(_UNKNOWN_SAMPLER)  # type: ignore[arg-type]
    stored = generation_pb2.GenerationOptions(sampling=sampling).SerializeToString()
    return GenerationOptions.from_bytes(stored)


def test_other_fields_can_be_changed() -> None:
    """The options are kept as they are."""
    settings = AssistantSettings(model="m", options=_unreadable_options())
    edit = assistant_edit(assistant_pb2.Assistant(name="new"), FieldMask(paths=["name"]))

    edited = edit(settings)

    assert edited.name == "new"
    assert bytes(edited.options) == bytes(settings.options)


def test_options_of_a_run_are_merged() -> None:
    """Those that can be read are kept beside those that cannot."""
    merged = _unreadable_options().merge(GenerationOptions.from_bytes(b"\x58\x01"))

    message = generation_pb2.GenerationOptions.FromString(bytes(merged))
    assert message.deterministic
    assert list(message.sampling.samplers) == [_UNKNOWN_SAMPLER]


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (
            {"sampling": {"samplers": [4, 99]}},
            InvalidField(
                field="options.sampling.samplers[1]", problem="99 is not a value of SamplerKind"
            ),
        ),
        ({"sampling": {"samplers": [0]}}, MissingField(field="options.sampling.samplers[0]")),
        (
            {"scheduling": {"queue_timeout": {"seconds": 10**10}}},
            InvalidField(
                field="options.scheduling.queue_timeout",
                problem="duration must be at most 1000000000 seconds",
            ),
        ),
        ({"output": {"token_ids": True}}, UnsupportedField(field="options.output.token_ids")),
    ],
)
def test_options_that_cannot_be_stored_are_refused(
    refused: dict[str, Any], error: DomainError
) -> None:
    """Unknown enum values, long durations, and options of this service."""
    with pytest.raises(type(error)) as raised:
        OPTIONS.decode(generation_pb2.GenerationOptions(**refused), "options")

    assert raised.value == error
