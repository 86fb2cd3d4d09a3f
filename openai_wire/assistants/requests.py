"""Request bodies of assistants, converted to protos.

A change names fields; null resets a field to its default.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from corral.control.v1 import assistant_pb2
from corral.control.v1 import assistant_service_pb2 as service_pb
from corral.inference.v1 import generation_pb2
from google.protobuf.field_mask_pb2 import FieldMask
from pydantic import Field

from openai_wire.assistants.tools import (
    MAX_TOOLS,
    AssistantFormat,
    AssistantTool,
    ToolResourcesBody,
    format_from,
    new_stores_from,
    resources_from,
    tools_from,
)
from openai_wire.chat.options import UNSUPPORTED, GenerationBody, generation_options
from openai_wire.shared.fields import validated, without_neutral

ASSISTANT_UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = UNSUPPORTED | {
    "max_tokens": (),
    "n": (1,),
    "n_predict": (),
    "stream": (False,),
    "stream_options": (),
}
"""What belongs to one generation, not to an assistant, and extensions that are not offered."""


class AssistantFields(GenerationBody):
    """The fields that an assistant shares with the runs that override them."""

    tools: Annotated[list[AssistantTool], Field(max_length=MAX_TOOLS)] | None = None
    response_format: AssistantFormat | None = Field(  # type: ignore[assignment]  # "auto", too
        None, description="The form of the answers. Default: auto."
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        Field(None, description="none turns thinking off; templates are told the others.")
    )
    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs.")


class AssistantBody(AssistantFields):
    """A new assistant."""

    model: str = Field(min_length=1, description="The model that answers.")
    name: Annotated[str, Field(max_length=256)] | None = None
    description: Annotated[str, Field(max_length=512)] | None = None
    instructions: Annotated[str, Field(max_length=256_000)] | None = Field(
        None, description="The system prompt."
    )
    tool_resources: ToolResourcesBody | None = None


class AssistantUpdateBody(AssistantBody):
    """What is different of an assistant."""

    model: str = Field("", description="The model that answers.")
    etag: str | None = Field(None, description="The etag that the assistant must still have.")


_OWN: Final = frozenset(
    (
        "model",
        "name",
        "description",
        "instructions",
        "tools",
        "tool_resources",
        "metadata",
        "response_format",
        "reasoning_effort",
    )
)
"""Fields that have the same name in the proto."""
_OPTION_PATHS: Final = {
    "repeat_penalty": "sampling.repetition_penalty",
    "repeat_last_n": "sampling.penalty_last_n",
    "mirostat_mode": "sampling.mirostat",
    "mirostat": "sampling.mirostat",
    "mirostat_tau": "sampling.mirostat",
    "mirostat_eta": "sampling.mirostat",
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
    "cache_prompt": "cache.reuse",
    "cache_salt": "cache.salt",
    "prompt_cache_key": "cache.affinity",
    "deterministic": "deterministic",
    "speculation": "speculation",
    "lora": "adapters",
}
"""Paths of fields in the generation options; other sampling fields have the same name."""


def create_assistant_request(
    fields: Mapping[str, Any], request_id: str
) -> service_pb.CreateAssistantRequest:
    """The assistant that a body describes. Raises DomainErrors with the body's field names."""
    body = validated(AssistantBody, without_neutral(fields, ASSISTANT_UNSUPPORTED))
    return service_pb.CreateAssistantRequest(
        assistant=_assistant(body, makes_stores=True),
        new_vector_stores=new_stores_from(body.tool_resources),
        request_id=request_id,
    )


def update_assistant_request(
    assistant_id: str, fields: Mapping[str, Any]
) -> service_pb.UpdateAssistantRequest:
    """What a body changes. Raises DomainErrors with the body's field names."""
    body = validated(AssistantUpdateBody, without_neutral(fields, ASSISTANT_UNSUPPORTED))
    changes = _assistant(body)
    changes.id, changes.etag = assistant_id, body.etag or ""
    paths = sorted({path for name in fields for path in _paths(name)})
    if not paths:  # an empty mask would mean what is set, and defaults are
        changes = assistant_pb2.Assistant(id=assistant_id, etag=body.etag or "")
    return service_pb.UpdateAssistantRequest(assistant=changes, update_mask=FieldMask(paths=paths))


def options_from(body: GenerationBody) -> generation_pb2.GenerationOptions:
    """The options of a body whose form stands beside them. Raises DomainErrors."""
    return generation_options(body.model_copy(update={"response_format": None}), None)


def _paths(name: str) -> list[str]:
    if name in _OWN:
        return [name]
    if name in _OPTION_PATHS:
        return [f"options.{_OPTION_PATHS[name]}"]
    if name.startswith("dry_"):
        return ["options.sampling.dry"]
    is_sampling = name in generation_pb2.GenerationOptions().sampling.DESCRIPTOR.fields_by_name
    return [f"options.sampling.{name}"] if is_sampling else []


def _assistant(body: AssistantBody, *, makes_stores: bool = False) -> assistant_pb2.Assistant:
    return assistant_pb2.Assistant(
        model=body.model,
        name=body.name or "",
        description=body.description or "",
        instructions=body.instructions or "",
        tools=tools_from(body.tools or ()),
        tool_resources=resources_from(body.tool_resources, makes_stores=makes_stores),
        metadata=body.metadata or {},
        options=options_from(body),
        response_format=format_from(body.response_format),
        reasoning_effort=body.reasoning_effort or "",
    )
