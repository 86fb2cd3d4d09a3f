"""Request bodies of runs, converted to protos."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal

from corral.control.v1 import run_pb2, tool_pb2
from corral.control.v1 import run_service_pb2 as pb
from corral.inference.v1.generation_pb2 import GenerationOptions
from pydantic import Field, Tag

from dialects.openai.assistants.requests import (
    AssistantFields,
    options_to_proto,
)
from dialects.openai.assistants.thread_requests import (
    MessageBody,
    MetadataBody,
    ThreadBody,
    messages_to_proto,
    thread_to_proto,
)
from dialects.openai.assistants.tools import (
    AssistantTool,
    ToolResourcesBody,
    format_to_proto,
    new_stores_to_proto,
    resources_to_proto,
    tools_to_proto,
)
from dialects.openai.chat.tools import NamedFunction
from dialects.shared.fields import (
    BY_KIND,
    WireModel,
    message_of,
    parse_event_number,
    update_mask,
    validate,
)
from svc_kit.errors import MissingField, UnsupportedValue
from svc_kit.rpc.field_limits import limit

_limit = partial(limit, pb.RunOptions)
_DEFAULTS: Final = frozenset(("temperature", "top_p", "top_k", "min_p"))
"""Sampling fields for which OpenAI's default differs from the model's."""
_INCLUDE_RESULTS: Final = "step_details.tool_calls[*].file_search.results[*].content"


class TruncationBody(WireModel):
    """Which messages of the thread the model sees."""

    type: Literal["auto", "last_messages"]
    last_messages: Annotated[int, _limit("truncation.last_messages")] | None = None


class ToolChoiceBody(WireModel):
    type: Literal["function", "file_search", "code_interpreter"]
    function: NamedFunction | None = None


RunToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~string")]
    | Annotated[ToolChoiceBody, Tag("~object")],
    BY_KIND,
]


class RunFields(AssistantFields):
    """Fields of a run that override its assistant."""

    assistant_id: str = Field(min_length=1, description="The id of the assistant.")
    model: str = Field("", description="Default: the assistant's.")
    tools: Annotated[list[AssistantTool], _limit("tools.tools")] | None = None
    instructions: Annotated[str, _limit("instructions")] | None = Field(
        None, description="Default: the assistant's."
    )
    truncation_strategy: TruncationBody | None = None
    max_prompt_tokens: Annotated[int, _limit("max_prompt_tokens")] | None = None
    max_completion_tokens: Annotated[int, _limit("max_completion_tokens")] | None = None
    tool_choice: RunToolChoice | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = Field(None, description="Stream the events of the run.")


class RunBody(RunFields):
    additional_instructions: Annotated[str, _limit("additional_instructions")] | None = None
    additional_messages: Annotated[list[MessageBody], _limit("additional_messages")] | None = None


class ThreadAndRunBody(RunFields):
    thread: ThreadBody | None = None
    tool_resources: ToolResourcesBody | None = None


class ToolOutputBody(WireModel):
    tool_call_id: str
    output: str = ""


class ToolOutputsBody(WireModel):
    """The outputs of all required function calls."""

    tool_outputs: list[ToolOutputBody]
    stream: bool | None = Field(None, description="Stream the events of the run.")


def parse_run(fields: Mapping[str, Any]) -> RunBody:
    """Validate a body. Raises DomainErrors with the body's field names."""
    return validate(RunBody, fields)


def parse_thread_and_run(fields: Mapping[str, Any]) -> ThreadAndRunBody:
    """Validate a body. Raises DomainErrors with the body's field names."""
    return validate(ThreadAndRunBody, fields)


def parse_outputs(fields: Mapping[str, Any]) -> ToolOutputsBody:
    """Validate a body. Raises DomainErrors with the body's field names."""
    return validate(ToolOutputsBody, fields)


def create_run_request(thread_id: str, body: RunBody, request_id: str) -> pb.CreateRunRequest:
    """Convert the body of a new run. Raises DomainErrors with the body's field names."""
    messages = messages_to_proto(body.additional_messages or (), "additional_messages")
    options = _run_options(body, additional_messages=messages, tool_resources=None)
    return pb.CreateRunRequest(thread_id=thread_id, run=options, request_id=request_id)


def create_thread_and_run_request(
    body: ThreadAndRunBody, request_id: str
) -> pb.CreateThreadAndRunRequest:
    """Convert the body of a new thread and run. Raises DomainErrors with its field names."""
    given, thread = body.tool_resources, body.thread or ThreadBody()
    options = _run_options(
        body,
        additional_instructions=None,
        additional_messages=None,
        tool_resources=None if given is None else resources_to_proto(given),
    )
    return pb.CreateThreadAndRunRequest(
        thread=thread_to_proto(thread, allow_new_stores=True),
        new_vector_stores=new_stores_to_proto(thread.tool_resources),
        messages=messages_to_proto(thread.messages or (), "thread.messages"),
        run=options,
        request_id=request_id,
    )


def update_run_request(
    thread_id: str, run_id: str, fields: Mapping[str, Any]
) -> pb.UpdateRunRequest:
    """Convert the body of an update. Raises DomainErrors with the body's field names."""
    body = validate(MetadataBody, fields)
    return pb.UpdateRunRequest(
        thread_id=thread_id,
        run_id=run_id,
        metadata=body.metadata or {},
        update_mask=update_mask(fields, "metadata"),
    )


def submit_request(
    thread_id: str, run_id: str, body: ToolOutputsBody, request_id: str
) -> pb.SubmitToolOutputsRequest:
    return pb.SubmitToolOutputsRequest(
        thread_id=thread_id,
        run_id=run_id,
        outputs=[
            pb.ToolOutput(call_id=each.tool_call_id, output=each.output)
            for each in body.tool_outputs
        ],
        request_id=request_id,
    )


def watch_request(thread_id: str, run_id: str, last_event_id: str | None) -> pb.WatchRunRequest:
    """Request the events after number `last_event_id`; all if None. Raises InvalidField."""
    after = None if last_event_id is None else parse_event_number(last_event_id)
    return pb.WatchRunRequest(thread_id=thread_id, run_id=run_id, after=after)


def wants_search_results(include: list[str]) -> bool:
    """Whether the content of search results is included. Raises UnsupportedValue."""
    for value in include:
        if value != _INCLUDE_RESULTS:
            raise UnsupportedValue(field="include", value=value)
    return bool(include)


def _run_options(body: RunFields, **others: Any) -> pb.RunOptions:
    tools = None if body.tools is None else pb.RunTools(tools=tools_to_proto(body.tools))
    return message_of(
        pb.RunOptions,
        body,
        tools=tools,
        options=_override_options(body),
        response_format=format_to_proto(body.response_format),
        tool_choice=_tool_choice(body.tool_choice),
        truncation=_truncation(body.truncation_strategy),
        **others,
    )


def _override_options(body: RunFields) -> GenerationOptions:
    """Generation options without OpenAI's defaults, which would override the assistant's."""
    options = options_to_proto(body)
    for name in _DEFAULTS - body.model_fields_set:
        options.sampling.ClearField(name)
    return options


def _truncation(strategy: TruncationBody | None) -> run_pb2.RunTruncation | None:
    if strategy is None or strategy.type == "auto":
        return None
    if strategy.last_messages is None:
        raise MissingField(field="truncation_strategy.last_messages")
    return run_pb2.RunTruncation(last_messages=strategy.last_messages)


def _tool_choice(choice: str | ToolChoiceBody | None) -> tool_pb2.ToolSelection | None:
    if choice is None:
        return None
    if isinstance(choice, str):
        return tool_pb2.ToolSelection(mode=f"MODE_{choice.upper()}")
    if choice.type == "code_interpreter":
        raise UnsupportedValue(field="tool_choice.type", value=choice.type)
    if choice.type == "function" and choice.function is None:
        raise MissingField(field="tool_choice.function")
    name = choice.type if choice.function is None else choice.function.name
    return tool_pb2.ToolSelection(mode="MODE_REQUIRED", allowed_names=[name], is_one=True)
