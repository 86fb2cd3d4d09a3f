"""The bodies of POST /v1/messages and /v1/messages/count_tokens, converted to protos."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2, sampling_pb2
from pydantic import Field, Tag

from dialects.anthropic.blocks import CACHE_CONTROL, MessageParam, Part, TextBlock
from dialects.anthropic.conversation import ConvertedMessages, called_tools, convert_messages
from dialects.anthropic.errors import MessagePaths
from dialects.anthropic.tools import Tool, ToolChoice, chat_tool_choice, chat_tools
from dialects.shared.body_routes import check_route
from dialects.shared.efforts import EFFORTS, Effort
from dialects.shared.fields import BY_KIND, Count, WireModel, agreed_value, validate
from dialects.shared.generation_fields import StopTexts, shorten
from dialects.shared.json_body import json_text
from dialects.shared.parameters import Ignored, Policy, Refused, ignore_parameter, ignored
from svc_kit.errors import InvalidField, InvalidType, MissingField
from svc_kit.rpc.field_limits import limit

_limit = partial(limit, sampling_pb2.SamplingParams)
_DISPLAYS: Final = (None, "summarized", "omitted", "full")


class Thinking(Part):
    """Whether the model thinks before it answers."""

    type: Literal["disabled", "enabled", "adaptive", "between_tools"]
    budget_tokens: Count | None = Field(
        None, description="The maximum number of tokens of a thought."
    )
    display: str | None = Field(
        None,
        description="omitted leaves the text out; the signature carries it. With every other value "
        "the whole text is sent.",
    )


class JsonFormat(Part):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema", description="The JSON Schema.")


class OutputConfig(Part):
    """How the model answers."""

    effort: Effort | None = Field(None, description="How much the model thinks, if it thinks.")
    format: JsonFormat | None = Field(None, description="The format of the text.")


class PromptBody(WireModel):
    """What a prompt is made of."""

    route: ClassVar[str] = "/v1/messages"
    policy: ClassVar[Policy] = {
        **CACHE_CONTROL,
        "context_management": Ignored("conversations are not edited; prompts are whole"),
        **ignored("diagnostics inference_geo speed", "it is a hint for Anthropic's servers"),
        **ignored(
            "metadata session_id user_profile_id",
            "it is a label of the caller's, and is not stored",
        ),
        "service_tier": Ignored("there is one tier", ("auto", "standard_only")),
        "ttl": Ignored("the operator decides it"),
        "container": Refused("no code is run here"),
        "mcp_servers": Refused("servers are not called for a message", ([],)),
    }
    model: str = Field(min_length=1, description="The model's name, as GET /v1/models lists it.")
    messages: Annotated[list[MessageParam], Field(min_length=1)] = Field(
        description="The conversation. If the last message is the assistant's, it is continued."
    )
    system: (
        Annotated[
            Annotated[str, Tag("~string")] | Annotated[list[TextBlock], Tag("~array")], BY_KIND
        ]
        | None
    ) = Field(None, description="The system prompt.")
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = Field(
        None, description="Default: disabled. Ignored by models that cannot think."
    )
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = Field(
        None, description="The name that output_config.format had before."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Additional variables of the chat template."
    )


class CreateMessageBody(PromptBody):
    """A request for the next message of a conversation."""

    max_tokens: Count = Field(
        description="The maximum number of tokens of the answer. The rest of the context is "
        "another limit. 0 computes only the prompt."
    )
    stop_sequences: StopTexts | None = Field(
        None, description="Texts that end the answer; they are not part of it."
    )
    stream: bool | None = Field(None, description="Send events as they occur.")
    temperature: Annotated[float, _limit("temperature")] | None = Field(
        None, description="0 always takes the most probable token. Default: the model's."
    )
    top_p: Annotated[float, _limit("top_p")] | None = Field(
        None, description="Default: the model's."
    )
    top_k: Annotated[int, _limit("top_k")] | None = Field(
        None, description="0 is all tokens. Default: the model's."
    )

    @property
    def shows_thinking(self) -> bool:
        """Whether the text of thoughts is sent."""
        return self.thinking is None or self.thinking.display != "omitted"


class MessageRequest(NamedTuple):
    proto: inference_service_pb2.ChatRequest
    paths: MessagePaths


def parse_message(fields: Mapping[str, Any]) -> CreateMessageBody:
    """Validate the body of a message. Raises DomainErrors with its field names."""
    check_route(fields, PromptBody.route)
    return validate(CreateMessageBody, fields)


def parse_token_count(fields: Mapping[str, Any]) -> PromptBody:
    """Validate the body of a token count, which may have the fields of a message too."""
    check_route(fields, PromptBody.route)
    of_messages = CreateMessageBody.model_fields.keys() - PromptBody.model_fields.keys()
    return validate(PromptBody, {k: v for k, v in fields.items() if k not in of_messages})


def message_request(body: CreateMessageBody, affinity: str = "") -> MessageRequest:
    """Convert the body of a message. `affinity` names the session, for routing.

    Raises DomainErrors with the body's field names.
    """
    if body.thinking is not None and body.thinking.display not in _DISPLAYS:
        ignore_parameter("thinking.display", "the whole text of thoughts is sent")
    conversation, paths = _conversation(body)
    sampling = sampling_pb2.SamplingParams(
        temperature=body.temperature, top_p=body.top_p, top_k=body.top_k
    )
    stopping = generation_pb2.StoppingParams(max_tokens=body.max_tokens, stop=_stops(body))
    thinking = body.thinking if conversation.template.enable_thinking else None
    options = generation_pb2.GenerationOptions(
        sampling=sampling,
        stopping=stopping,
        constraint=_constraint(body),
        thinking_budget_tokens=None if thinking is None else thinking.budget_tokens,
    )
    if affinity:
        options.cache.affinity = shorten(affinity)
    proto = inference_service_pb2.ChatRequest(
        model=body.model, conversation=conversation, options=options
    )
    return MessageRequest(proto, paths)


def token_count_request(
    body: PromptBody,
) -> tuple[inference_service_pb2.CountTokensRequest, MessagePaths]:
    """Convert the body of a token count. Raises DomainErrors with the body's field names."""
    conversation, paths = _conversation(body)
    proto = inference_service_pb2.CountTokensRequest(model=body.model, conversation=conversation)
    return proto, paths


def _conversation(body: PromptBody) -> tuple[inference_service_pb2.Conversation, MessagePaths]:
    converted: ConvertedMessages = convert_messages(body.system, body.messages)
    tools = chat_tools(body.tools or (), _called(body))
    conversation = inference_service_pb2.Conversation(
        messages=converted.messages,
        tools=tools,
        tool_choice=chat_tool_choice(body.tool_choice, tools),
        template=_template_options(body),
    )
    return conversation, converted.paths


def _called(body: PromptBody) -> set[str]:
    """The names of tools that the conversation has called for. Raises InvalidField for a
    tool_reference to a tool that is not there."""
    names = {tool.name for tool in body.tools or ()}
    called = set() if body.tool_choice is None else {body.tool_choice.name or ""}
    for path, name in called_tools(body.messages):
        if name not in names and path.endswith(".tool_name"):
            raise InvalidField(field=path, problem=f"'{name}' is not among 'tools'")
        called.add(name)
    return called


def _template_options(body: PromptBody) -> chat_pb2.TemplateOptions:
    kwargs = dict(body.chat_template_kwargs or {})
    thinks = _thinks(body, kwargs.pop("enable_thinking", None))
    effort = "" if body.output_config is None else body.output_config.effort or ""
    return chat_pb2.TemplateOptions(
        kwargs_json=json_text(kwargs or None),
        enable_thinking=thinks,
        reasoning_effort=EFFORTS[effort],
    )


def _thinks(body: PromptBody, in_kwargs: object) -> bool:
    """Whether the model thinks. Two fields can say it, and must agree."""
    if in_kwargs is not None and not isinstance(in_kwargs, bool):
        raise InvalidType(field="chat_template_kwargs.enable_thinking", expected="a boolean")
    values = {
        "thinking": None if body.thinking is None else body.thinking.type != "disabled",
        "chat_template_kwargs.enable_thinking": in_kwargs,
    }
    return bool(agreed_value(values))


def _constraint(body: PromptBody) -> generation_pb2.Constraint | None:
    current = None if body.output_config is None else body.output_config.format
    if current is not None and body.output_format is not None:
        problem = "it cannot be combined with 'output_config.format'"
        raise InvalidField(field="output_format", problem=problem)
    output = current or body.output_format
    if output is None:
        return None
    return generation_pb2.Constraint(json_schema=json_text(output.schema_))


def _stops(body: CreateMessageBody) -> list[str]:
    stops = body.stop_sequences or []
    for position, text in enumerate(stops):
        if not text:
            raise MissingField(field=f"stop_sequences[{position}]")
    return stops
