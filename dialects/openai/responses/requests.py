"""Request bodies of responses, converted to protos."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

from corral.control.v1 import response_pb2
from corral.control.v1 import response_service_pb2 as service_pb
from corral.inference.v1 import generation_pb2, model_pb2
from pydantic import Field, Tag

from dialects.openai.chat.options import (
    GenerationBody,
    generation_options,
    output_limit,
)
from dialects.openai.chat.policy import GENERATION
from dialects.openai.chat.reasoning_fields import (
    ChosenReasoning,
    Reasoning,
    ReasoningFields,
    chosen_reasoning,
)
from dialects.openai.responses.choices import (
    Choice,
    TextSettings,
    format_to_proto,
    report_grammars,
    tool_choice_to_proto,
)
from dialects.openai.responses.input_items import items_to_proto
from dialects.openai.responses.tools import tools_to_proto
from dialects.shared.fields import BY_KIND, WireModel, message_of, validate
from dialects.shared.generation_fields import TopLogprobs
from dialects.shared.parameters import Ignored, Policy, Refused, ignore_parameter
from svc_kit.errors import InvalidField, InvalidType, MissingField
from svc_kit.rpc.field_limits import limit

_limit = partial(limit, response_pb2.ResponseSettings)
_NO_HOSTED_TOOLS: Final = Ignored("it configures tools that are not supported")
_INCLUDES: Final[dict[str, response_pb2.ResponseInclude | None]] = {
    "message.output_text.logprobs": response_pb2.RESPONSE_INCLUDE_LOGPROBS,
    "file_search_call.results": response_pb2.RESPONSE_INCLUDE_FILE_SEARCH_RESULTS,
    "reasoning.encrypted_content": response_pb2.RESPONSE_INCLUDE_SEALED_REASONING,
    "message.input_image.image_url": response_pb2.RESPONSE_INCLUDE_INPUT_IMAGE_URLS,
    "code_interpreter_call.outputs": None,
    "computer_call_output.output.image_url": None,
    "web_search_call.action.sources": None,
    "web_search_call.results": None,
}
"""Values of `include`. None: ignored, since the tool is not supported."""
Input = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[dict[str, Any]], Tag("~array")], BY_KIND
]


class ConversationName(WireModel):
    id: str = Field(min_length=1)


class ContextManagement(WireModel):
    """Automatic compaction of long contexts."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, _limit("compact_threshold")] | None = Field(
        None, description="Earlier items are summarized if the prompt has more tokens than this."
    )


class ResponseBody(GenerationBody, ReasoningFields):
    route: ClassVar[str] = "/v1/responses"
    policy: ClassVar[Policy] = {
        "access_programs": _NO_HOSTED_TOOLS,
        "image": _NO_HOSTED_TOOLS,
        "personality": Ignored("models have no such setting"),
        "logprobs": Refused("use 'include' with 'message.output_text.logprobs'"),
        "messages": Refused("it belongs to /v1/chat/completions; use 'input'"),
        "moderation": Refused("there is no moderation"),
        "n": Refused("a response has one answer", (1,)),
        "prompt": Refused("there are no stored prompts; use 'instructions'"),
        "response_format": Refused("use 'text.format'"),
    }

    model: str = Field("", description="The model's name. Default: the server's first model.")
    input: Input | None = Field(None, description="A text, or a list of items.")
    instructions: Annotated[str, _limit("instructions")] | None = Field(
        None, description="A system message; not inherited from the previous response."
    )
    previous_response_id: str | None = Field(None, description="The response to continue.")
    conversation: (
        Annotated[
            Annotated[str, Tag("~string")] | Annotated[ConversationName, Tag("~object")], BY_KIND
        ]
        | None
    ) = Field(None, description="The conversation to continue; input and output are added to it.")
    background: bool | None = Field(
        None, description="Return at once and generate in the background."
    )
    store: bool | None = Field(None, description="False stores nothing. Default: true.")
    tools: Annotated[list[dict[str, Any]], _limit("tools")] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: Annotated[list[ContextManagement], Field(max_length=1)] | None = None
    include: list[str] | None = None
    max_output_tokens: Annotated[int, _limit("max_output_tokens")] | None = Field(
        None, description="The maximum number of tokens of all turns, including reasoning."
    )
    max_tool_calls: Annotated[int, _limit("max_tool_calls")] | None = None
    top_logprobs: TopLogprobs | None = None

    metadata: dict[str, Any] | None = Field(None, description="At most 16 pairs of strings.")
    safety_identifier: str | None = Field(None, description="Stored with the response.")
    service_tier: str | None = Field(None, description="Stored with the response; without effect.")
    user: str | None = Field(None, description="Stored with the response.")

    @property
    def conversation_id(self) -> str:
        """The id of the conversation, or ""."""
        conversation = self.conversation
        return conversation.id if isinstance(conversation, ConversationName) else conversation or ""


class CompactBody(WireModel):
    policy: ClassVar[Policy] = {
        "image": _NO_HOSTED_TOOLS,
        "prompt_cache_options": GENERATION["prompt_cache_options"],
        "prompt_cache_retention": GENERATION["prompt_cache_retention"],
        "service_tier": GENERATION["service_tier"],
    }

    model: str = Field(description="The model's name.")
    input: Input | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    prompt_cache_key: str | None = None


def parse_response(fields: Mapping[str, Any]) -> ResponseBody:
    """Validate a body. Raises DomainErrors with OpenAI's field names."""
    return validate(ResponseBody, fields)


def new_response(body: ResponseBody) -> response_pb2.NewResponse:
    """Convert a body. Raises DomainErrors with OpenAI's field names."""
    if body.conversation_id and body.previous_response_id:
        raise InvalidField(
            field="previous_response_id", problem="it cannot be combined with 'conversation'"
        )
    if body.input is None and not (body.conversation_id or body.previous_response_id):
        raise MissingField(field="input")
    if body.background and body.store is False:
        raise InvalidField(field="background", problem="it requires 'store' to be true")
    return response_pb2.NewResponse(
        settings=_settings(body),
        input=items_to_proto(
            body.input or (),
            "input",
            needs_one=not (body.conversation_id or body.previous_response_id),
        ),
        previous_response_id=body.previous_response_id or "",
        conversation_id=body.conversation_id,
    )


def compact_request(fields: Mapping[str, Any]) -> service_pb.CompactResponseRequest:
    """Convert the body of a compaction. Raises DomainErrors with OpenAI's field names."""
    body = validate(CompactBody, fields)
    if body.input is None and not body.previous_response_id:
        raise MissingField(field="input")
    return service_pb.CompactResponseRequest(
        model=body.model,
        input=items_to_proto(body.input or (), "input", needs_one=not body.previous_response_id),
        previous_response_id=body.previous_response_id or "",
        instructions=body.instructions,
        prompt_cache_key=body.prompt_cache_key or "",
    )


def parse_includes(names: Sequence[str]) -> list[response_pb2.ResponseInclude]:
    """Convert values of `include`. Raises InvalidField for an unknown value."""
    for index, name in enumerate(names):
        if name not in _INCLUDES:
            raise InvalidField(field=f"include[{index}]", problem=f"'{name[:80]}' is not known")
        if _INCLUDES[name] is None:
            ignore_parameter(f"include[{index}]", f"'{name}' belongs to an unsupported tool")
    return [value for name in names if (value := _INCLUDES[name]) is not None]


def _settings(body: ResponseBody) -> response_pb2.ResponseSettings:
    tools = tools_to_proto(body.tools or ())
    include = parse_includes(body.include or ())
    chosen = chosen_reasoning(body)
    text = body.text or TextSettings()
    if text.verbosity not in (None, "medium"):
        ignore_parameter("text.verbosity", "models have no such setting")
    if body.service_tier not in (None, "auto", "default"):
        ignore_parameter("service_tier", "there is one tier")
    choice = tool_choice_to_proto(body.tool_choice, tools)
    report_grammars(tools, choice, text.format)
    limit = output_limit(body, "max_output_tokens", "max_tokens", "n_predict")
    compaction = next(iter(body.context_management or ()), None)
    return message_of(
        response_pb2.ResponseSettings,
        body,
        tools=tools,
        tool_choice=choice,
        format=format_to_proto(text.format),
        verbosity=text.verbosity or "",
        reasoning=_reasoning(body, chosen),
        truncation=response_pb2.ResponseSettings.TRUNCATION_AUTO
        if body.truncation == "auto"
        else response_pb2.ResponseSettings.TRUNCATION_DISABLED,
        max_output_tokens=limit,
        compact_threshold=None if compaction is None else compaction.compact_threshold,
        options=_options(body, include, chosen.budget_tokens),
        include=include,
        metadata=_metadata(body.metadata),
    )


def report_reasoning(body: ResponseBody, support: model_pb2.ThinkingSupport) -> None:
    """Report the settings that a model ignores. Raises UnsupportedField in a strict request."""
    chosen = chosen_reasoning(body)
    names = [*chosen.names.values(), "reasoning.summary" if _summary(body) else ""]
    if support.mode == support.MODE_ALWAYS:
        names = [] if support.efforts else [chosen.names.get("reasoning_effort", "")]
    if support.mode in (0, support.MODE_SWITCHABLE) or chosen.enabled is False:
        return
    for name in filter(None, dict.fromkeys(names)):
        ignore_parameter(name, "the model has no such thinking")


def _summary(body: ResponseBody) -> str:
    reasoning = body.reasoning or Reasoning()
    return reasoning.summary or reasoning.generate_summary or ""


def _reasoning(
    body: ResponseBody, chosen: ChosenReasoning
) -> response_pb2.ResponseReasoning | None:
    """Thinking that is enabled without an effort has OpenAI's default effort."""
    switched = {True: "medium", False: "none", None: ""}[chosen.enabled]
    effort = chosen.effort or switched
    if body.reasoning is None and not effort:
        return None
    return response_pb2.ResponseReasoning(effort=effort, summary=_summary(body))


def _options(
    body: ResponseBody, include: Sequence[response_pb2.ResponseInclude], budget: int | None
) -> generation_pb2.GenerationOptions:
    options = generation_options(body, None)
    if budget is not None:
        options.thinking_budget_tokens = budget
    if response_pb2.RESPONSE_INCLUDE_LOGPROBS in include or body.top_logprobs:
        options.output.top_logprobs = body.top_logprobs or 0
    return options


def _metadata(metadata: Mapping[str, Any] | None) -> dict[str, str]:
    for key, value in (metadata or {}).items():
        if not isinstance(value, str):
            raise InvalidType(field=f"metadata.{key}", expected="a string")
    return dict(metadata or {})
