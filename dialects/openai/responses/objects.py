"""Response objects. They have every required key, and null only where Open Responses allows it."""

from typing import Annotated, Literal, NotRequired

from corral.control.v1 import response_pb2
from corral.control.v1 import response_service_pb2 as service_pb
from typing_extensions import TypedDict

from dialects.openai.errors import RESPONSE_PARAMS, openai_name
from dialects.openai.responses.choices import (
    PlainTextFormat,
    SchemaTextFormat,
    ToolChoice,
    format_object,
    tool_choice_object,
)
from dialects.openai.responses.output_items import Item, item_objects
from dialects.openai.responses.tool_objects import NamespaceTool, ResponseTool, tool_objects
from dialects.openai.shared.objects import (
    CachedTokens,
    ReasoningTokens,
    by_callers_names,
    incomplete_details,
    total_tokens,
)
from dialects.shared.wire import From, round_float32, seconds, writer

ResponseStatus = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]


class PromptTokens(CachedTokens):
    """`cache_write_tokens`, which OpenAI bills, is required by its clients."""

    cache_write_tokens: Literal[0]


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: Annotated[PromptTokens, From(".")]
    output_tokens: int
    output_tokens_details: Annotated[ReasoningTokens, From(".")]
    total_tokens: Annotated[int, From(".", total_tokens)]


def _param(name: str) -> str:
    return openai_name(name, RESPONSE_PARAMS)


class ResponseError(TypedDict):
    """Why a response failed."""

    code: str
    message: str
    param: NotRequired[Annotated[str, From(write=_param)]]


class IncompleteResponse(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


class ConversationId(TypedDict):
    id: str


def _conversation(conversation_id: str) -> ConversationId:
    return {"id": conversation_id}


class TextOutput(TypedDict):
    """Settings of the text output."""

    format: Annotated[PlainTextFormat | SchemaTextFormat, From(write=format_object)]
    verbosity: NotRequired[str]


class ReasoningSettings(TypedDict):
    effort: str | None
    summary: str | None


def _tool_choice(settings: response_pb2.ResponseSettings) -> ToolChoice:
    return tool_choice_object(settings.tool_choice, settings.tools)


def _truncation(settings: response_pb2.ResponseSettings) -> Literal["auto", "disabled"]:
    is_auto = settings.truncation == response_pb2.ResponseSettings.TRUNCATION_AUTO
    return "auto" if is_auto else "disabled"


def _true_if_unset(name: str) -> From:
    return From("settings", lambda settings: getattr(settings, name) or not settings.HasField(name))


def _sampling(name: str, default: float) -> From:
    """A sampling parameter that strict clients require."""

    def read(settings: response_pb2.ResponseSettings) -> float:
        sampling = settings.options.sampling
        return round_float32(getattr(sampling, name)) if sampling.HasField(name) else default

    return From("settings", read)


class ResponseResource(TypedDict):
    id: str
    object: Literal["response"]
    created_at: Annotated[int, seconds("create_time")]
    completed_at: Annotated[int | None, seconds("complete_time")]
    status: Annotated[ResponseStatus, From("state")]
    background: Annotated[bool, From("settings.background")]
    error: ResponseError | None
    incomplete_details: Annotated[IncompleteResponse | None, From(".", incomplete_details)]
    model: Annotated[str, From("settings.model")]
    output: Annotated[list[Item], From(write=item_objects)]
    previous_response_id: str | None
    conversation: Annotated[ConversationId | None, From("conversation_id", _conversation)]
    usage: ResponseUsage | None
    instructions: Annotated[str | None, From("settings.instructions")]
    tools: Annotated[list[ResponseTool | NamespaceTool], From("settings.tools", tool_objects)]
    tool_choice: Annotated[ToolChoice, From("settings", _tool_choice)]
    parallel_tool_calls: Annotated[bool, _true_if_unset("parallel_tool_calls")]
    text: Annotated[TextOutput, From("settings")]
    reasoning: Annotated[ReasoningSettings | None, From("settings.reasoning")]
    truncation: Annotated[Literal["auto", "disabled"], From("settings", _truncation)]
    max_output_tokens: Annotated[int | None, From("settings.max_output_tokens")]
    max_tool_calls: Annotated[int | None, From("settings.max_tool_calls")]
    store: Annotated[bool, _true_if_unset("store")]
    metadata: Annotated[dict[str, str], From("settings.metadata")]
    service_tier: Annotated[str, From("settings.service_tier", lambda tier: tier or "auto")]
    safety_identifier: Annotated[str | None, From("settings.safety_identifier")]
    prompt_cache_key: Annotated[str | None, From("settings.prompt_cache_key")]
    user: Annotated[str | None, From("settings.user")]
    temperature: Annotated[float, _sampling("temperature", 1.0)]
    top_p: Annotated[float, _sampling("top_p", 1.0)]
    presence_penalty: Annotated[float, _sampling("presence_penalty", 0.0)]
    frequency_penalty: Annotated[float, _sampling("frequency_penalty", 0.0)]
    top_logprobs: Annotated[int, From("settings.options.output.top_logprobs")]
    ignored_parameters: NotRequired[Annotated[list[str], by_callers_names(RESPONSE_PARAMS)]]


class InputTokens(TypedDict):
    """How many tokens a prompt has."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Compaction(TypedDict):
    id: str
    object: Literal["response.compaction"]
    created_at: Annotated[int, seconds("create_time")]
    output: Annotated[list[Item], From(write=item_objects)]
    usage: ResponseUsage


class McpServer(TypedDict):
    """A remote server whose tools responses may use."""

    id: str
    object: Literal["mcp_server"]


response_object = writer(response_pb2.Response, ResponseResource)
compaction_object = writer(service_pb.CompactResponseResponse, Compaction)
mcp_server_object = writer(service_pb.McpServer, McpServer)
