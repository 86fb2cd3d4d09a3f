"""Request bodies of runs, converted to protos."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from corral.control.v1 import run_pb2, tool_pb2
from corral.control.v1 import run_service_pb2 as pb
from corral.inference.v1.generation_pb2 import GenerationOptions
from pydantic import Field, Tag

from openai_wire.assistants.requests import ASSISTANT_UNSUPPORTED, AssistantFields, options_from
from openai_wire.assistants.thread_requests import (
    MessageBody,
    MetadataBody,
    ThreadBody,
    messages_from,
    thread_from,
)
from openai_wire.assistants.tools import (
    ToolResourcesBody,
    format_from,
    new_stores_from,
    resources_from,
    tools_from,
)
from openai_wire.chat.tools import NamedFunction
from openai_wire.shared.fields import (
    BY_KIND,
    INT32_MAX,
    WireModel,
    number_of,
    validated,
    without_neutral,
)
from svc_kit.errors import InvalidField, MissingField, UnsupportedValue

_UNSUPPORTED: Final = {
    name: values for name, values in ASSISTANT_UNSUPPORTED.items() if name != "stream"
}
_MODES: Final = {
    "none": tool_pb2.ToolSelection.MODE_NONE,
    "auto": tool_pb2.ToolSelection.MODE_AUTO,
    "required": tool_pb2.ToolSelection.MODE_REQUIRED,
}
_DEFAULTS: Final = frozenset(("temperature", "top_p", "top_k", "min_p"))
"""Where OpenAI's defaults are not the model's."""
_INCLUDES: Final = "step_details.tool_calls[*].file_search.results[*].content"


class TruncationBody(WireModel):
    """What of the thread the model is shown."""

    type: Literal["auto", "last_messages"]
    last_messages: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None


class ToolChoiceBody(WireModel):
    """A choice that names a tool."""

    type: Literal["function", "file_search", "code_interpreter"]
    function: NamedFunction | None = None


RunToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~string")]
    | Annotated[ToolChoiceBody, Tag("~object")],
    BY_KIND,
]


class RunFields(AssistantFields):
    """Fields of a run that override its assistant."""

    assistant_id: str = Field(min_length=1, description="The assistant.")
    model: str = Field("", description="Default: the assistant's.")
    instructions: Annotated[str, Field(max_length=256_000)] | None = Field(
        None, description="Default: the assistant's."
    )
    truncation_strategy: TruncationBody | None = None
    max_prompt_tokens: Annotated[int, Field(ge=256, le=INT32_MAX)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=256, le=INT32_MAX)] | None = None
    tool_choice: RunToolChoice | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = Field(None, description="Answer with events while the run goes on.")


class RunBody(RunFields):
    """A new run."""

    additional_instructions: Annotated[str, Field(max_length=256_000)] | None = None
    additional_messages: list[MessageBody] | None = Field(None, description="At most 1000.")


class ThreadAndRunBody(RunFields):
    """A new thread and a run on it."""

    thread: ThreadBody | None = None
    tool_resources: ToolResourcesBody | None = None


class ToolOutputBody(WireModel):
    """What a function of the client's gave."""

    tool_call_id: str
    output: str = ""


class ToolOutputsBody(WireModel):
    """What the functions of the client's gave, all at once."""

    tool_outputs: list[ToolOutputBody]
    stream: bool | None = Field(None, description="Answer with events while the run goes on.")


def parse_run(fields: Mapping[str, Any]) -> RunBody:
    """A checked body. Raises DomainErrors with the body's field names."""
    return validated(RunBody, without_neutral(fields, _UNSUPPORTED))


def parse_thread_and_run(fields: Mapping[str, Any]) -> ThreadAndRunBody:
    """A checked body. Raises DomainErrors with the body's field names."""
    return validated(ThreadAndRunBody, without_neutral(fields, _UNSUPPORTED))


def parse_outputs(fields: Mapping[str, Any]) -> ToolOutputsBody:
    """A checked body. Raises DomainErrors with the body's field names."""
    return validated(ToolOutputsBody, without_neutral(fields, {}))


def create_run_request(thread_id: str, body: RunBody, request_id: str) -> pb.CreateRunRequest:
    """The run that a body asks for. Raises DomainErrors with the body's field names."""
    options = _run_options(body)
    options.additional_instructions = body.additional_instructions or ""
    messages = messages_from(body.additional_messages or (), "additional_messages")
    options.additional_messages.extend(messages)
    return pb.CreateRunRequest(thread_id=thread_id, run=options, request_id=request_id)


def create_thread_and_run_request(
    body: ThreadAndRunBody, request_id: str
) -> pb.CreateThreadAndRunRequest:
    """The thread and run that a body asks for. Raises DomainErrors with its field names."""
    options, thread = _run_options(body), body.thread or ThreadBody()
    if body.tool_resources is not None:
        options.tool_resources.CopyFrom(resources_from(body.tool_resources))
    return pb.CreateThreadAndRunRequest(
        thread=thread_from(thread, makes_stores=True),
        new_vector_stores=new_stores_from(thread.tool_resources),
        messages=messages_from(thread.messages or (), "thread.messages"),
        run=options,
        request_id=request_id,
    )


def update_run_request(
    thread_id: str, run_id: str, fields: Mapping[str, Any]
) -> pb.UpdateRunRequest:
    """What a body changes. Raises DomainErrors with the body's field names."""
    body = validated(MetadataBody, without_neutral(fields, {}))
    return pb.UpdateRunRequest(thread_id=thread_id, run_id=run_id, metadata=body.metadata or {})


def submit_request(
    thread_id: str, run_id: str, body: ToolOutputsBody, request_id: str
) -> pb.SubmitToolOutputsRequest:
    """The outputs of a body."""
    return pb.SubmitToolOutputsRequest(
        thread_id=thread_id,
        run_id=run_id,
        outputs=[
            pb.ToolOutput(call_id=given.tool_call_id, output=given.output)
            for given in body.tool_outputs
        ],
        request_id=request_id,
    )


def watch_request(thread_id: str, run_id: str, last_event_id: str | None) -> pb.WatchRunRequest:
    """The events behind a number. Raises InvalidField."""
    after = None if last_event_id is None else number_of(last_event_id)
    if isinstance(after, str):
        raise InvalidField(field="starting_after", problem="it is not the number of an event")
    return pb.WatchRunRequest(thread_id=thread_id, run_id=run_id, after=after)


def includes_results(request: list[str]) -> bool:
    """Whether the passages of searches are wanted. Raises UnsupportedValue."""
    for value in request:
        if value != _INCLUDES:
            raise UnsupportedValue(field="include", value=value)
    return bool(request)


def _run_options(body: RunFields) -> pb.RunOptions:
    options = pb.RunOptions(
        assistant_id=body.assistant_id,
        model=body.model,
        instructions=body.instructions,
        metadata=body.metadata or {},
        options=_own_options(body),
        response_format=format_from(body.response_format),
        reasoning_effort=body.reasoning_effort or "",
        tool_choice=_selection(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        truncation=_truncation(body.truncation_strategy),
        max_prompt_tokens=body.max_prompt_tokens,
        max_completion_tokens=body.max_completion_tokens,
    )
    if body.tools is not None:
        options.tools.CopyFrom(pb.RunTools(tools=tools_from(body.tools)))
    return options


def _own_options(body: RunFields) -> GenerationOptions:
    """Generation options, without OpenAI's defaults, which would override the assistant."""
    options = options_from(body)
    for name in _DEFAULTS - body.model_fields_set:
        options.sampling.ClearField(name)
    return options


def _truncation(request: TruncationBody | None) -> run_pb2.RunTruncation | None:
    if request is None or request.type == "auto":
        return None
    if request.last_messages is None:
        raise MissingField(field="truncation_strategy.last_messages")
    return run_pb2.RunTruncation(last_messages=request.last_messages)


def _selection(request: str | ToolChoiceBody | None) -> tool_pb2.ToolSelection | None:
    if request is None:
        return None
    if isinstance(request, str):
        return tool_pb2.ToolSelection(mode=_MODES[request])
    if request.type == "code_interpreter":
        raise UnsupportedValue(field="tool_choice.type", value=request.type)
    if request.type == "function" and request.function is None:
        raise MissingField(field="tool_choice.function")
    name = request.type if request.function is None else request.function.name
    return tool_pb2.ToolSelection(mode=_MODES["required"], allowed_names=[name], is_one=True)
