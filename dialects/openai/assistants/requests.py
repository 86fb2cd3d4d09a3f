"""Request bodies of assistants, converted to protos.

An update changes the fields that its body contains; null resets a field to its default.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Final

from corral.control.v1 import assistant_pb2
from corral.control.v1 import assistant_service_pb2 as service_pb
from corral.inference.v1 import generation_pb2
from google.protobuf.field_mask_pb2 import FieldMask
from pydantic import Field

from dialects.openai.assistants.tools import (
    AssistantFormat,
    AssistantTool,
    ToolResourcesBody,
    format_to_proto,
    new_stores_to_proto,
    resources_to_proto,
    tools_to_proto,
)
from dialects.openai.chat.options import GenerationBody, generation_options
from dialects.openai.chat.output_format import GuidedFields
from dialects.shared.efforts import Effort
from dialects.shared.fields import message_of, validate
from dialects.shared.parameters import Policy, Refused
from svc_kit.rpc.field_limits import limit

_limit = partial(limit, assistant_pb2.Assistant)
_LIMITED_BY_RUN: Final = "a run has 'max_completion_tokens'"


class AssistantFields(GenerationBody):
    """The fields that an assistant shares with the runs that override them."""

    policy: ClassVar[Policy] = {
        "max_tokens": Refused(_LIMITED_BY_RUN),
        "n": Refused("a run has one answer", (1,)),
        "n_predict": Refused(_LIMITED_BY_RUN),
        "stream_options": Refused("streams of runs always have token counts"),
    }

    tools: Annotated[list[AssistantTool], _limit("tools")] | None = None
    response_format: AssistantFormat | None = Field(  # type: ignore[assignment]  # "auto", too
        None, description="The output format of answers. Default: auto."
    )
    reasoning_effort: Effort | None = Field(None, description="none disables thinking.")
    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs of strings.")


class AssistantBody(AssistantFields):
    policy: ClassVar[Policy] = {"stream": Refused("runs are streamed, not assistants", (False,))}

    model: str = Field(min_length=1, description="The model that answers.")
    name: Annotated[str, _limit("name")] | None = None
    description: Annotated[str, _limit("description")] | None = None
    instructions: Annotated[str, _limit("instructions")] | None = Field(
        None, description="The system prompt."
    )
    tool_resources: ToolResourcesBody | None = None


class AssistantUpdateBody(AssistantBody):
    """Changes of an assistant."""

    model: str = Field("", description="The model that answers.")
    etag: str | None = Field(None, description="Update only if the assistant has this etag.")


_SAME_NAME: Final = (
    AssistantBody.model_fields.keys() & assistant_pb2.Assistant.DESCRIPTOR.fields_by_name.keys()
)
"""Fields with the same name in the proto."""
_OPTION_PATHS: Final = {
    "repeat_penalty": "sampling.repetition_penalty",
    "repeat_last_n": "sampling.penalty_last_n",
    **dict.fromkeys(
        (f"mirostat{end}" for end in ("", "_mode", "_tau", "_eta")), "sampling.mirostat"
    ),
    "adaptive_target": "sampling.adaptive",
    "adaptive_decay": "sampling.adaptive",
    "stop": "stopping.stop",
    "min_tokens": "stopping.min_tokens",
    "stop_token_ids": "stopping.stop_token_ids",
    "ignore_eos": "stopping.ignore_eos",
    "include_stop_str_in_output": "stopping.include_stop",
    "skip_special_tokens": "output.special_tokens",
    "grammar": "constraint",
    "json_schema": "constraint",
    "structured_outputs": "constraint",
    **dict.fromkeys(GuidedFields.model_fields, "constraint"),
    "cache_prompt": "cache.reuse",
    "cache_salt": "cache.salt",
    "prompt_cache_key": "cache.affinity",
    "deterministic": "deterministic",
    "speculation": "speculation",
    "lora": "adapters",
}
"""Paths of fields in GenerationOptions, unless the name is that of a sampling field."""


def create_assistant_request(
    fields: Mapping[str, Any], request_id: str
) -> service_pb.CreateAssistantRequest:
    """Convert the body of a new assistant. Raises DomainErrors with the body's field names."""
    body = validate(AssistantBody, fields)
    return service_pb.CreateAssistantRequest(
        assistant=_assistant(body, allow_new_stores=True),
        new_vector_stores=new_stores_to_proto(body.tool_resources),
        request_id=request_id,
    )


def update_assistant_request(
    assistant_id: str, fields: Mapping[str, Any]
) -> service_pb.UpdateAssistantRequest:
    """Convert the body of an update. Raises DomainErrors with the body's field names."""
    body = validate(AssistantUpdateBody, fields)
    changes = _assistant(body)
    changes.id, changes.etag = assistant_id, body.etag or ""
    paths = sorted({path for name in fields for path in _paths(name)})
    if not paths:  # an empty mask would update every field that is set, defaults included
        changes = assistant_pb2.Assistant(id=assistant_id, etag=body.etag or "")
    return service_pb.UpdateAssistantRequest(assistant=changes, update_mask=FieldMask(paths=paths))


def options_to_proto(body: GenerationBody) -> generation_pb2.GenerationOptions:
    """The generation options of a body, without its output format. Raises DomainErrors."""
    return generation_options(body.model_copy(update={"response_format": None}), None)


def _paths(name: str) -> list[str]:
    if name in _SAME_NAME:
        return [name]
    if name in _OPTION_PATHS:
        return [f"options.{_OPTION_PATHS[name]}"]
    if name.startswith("dry_"):
        return ["options.sampling.dry"]
    is_sampling = name in generation_pb2.GenerationOptions().sampling.DESCRIPTOR.fields_by_name
    return [f"options.sampling.{name}"] if is_sampling else []


def _assistant(body: AssistantBody, *, allow_new_stores: bool = False) -> assistant_pb2.Assistant:
    return message_of(
        assistant_pb2.Assistant,
        body,
        tools=tools_to_proto(body.tools or ()),
        tool_resources=resources_to_proto(body.tool_resources, allow_new_stores=allow_new_stores),
        options=options_to_proto(body),
        response_format=format_to_proto(body.response_format),
        id=None,
        create_time=None,
        etag=None,
    )
