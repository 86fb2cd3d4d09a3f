"""The body of POST /v1/chat/completions, converted to a ChatRequest."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from corral.inference.v1 import chat_pb2, inference_service_pb2
from pydantic import Field, Tag

from dialects.openai.chat.legacy_functions import LegacyFunctionFields, as_tools
from dialects.openai.chat.messages import (
    NO_FILES,
    Message,
    StoredFiles,
    chat_messages,
)
from dialects.openai.chat.options import (
    CompletionFields,
    OutputLimit,
    completion_options,
    output_limit,
)
from dialects.openai.chat.policy import NOT_TEXT
from dialects.openai.chat.reasoning_fields import (
    ChosenReasoning,
    ReasoningFields,
    chosen_reasoning,
)
from dialects.openai.chat.tools import ToolChoice, ToolDefinition, chat_tool_choice, chat_tools
from dialects.shared.efforts import EFFORTS, Effort
from dialects.shared.fields import (
    BY_KIND,
    WireModel,
    validate,
)
from dialects.shared.generation_fields import TopLogprobs
from dialects.shared.json_body import json_text
from dialects.shared.parameters import Ignored, Policy, Refused
from svc_kit.errors import InvalidField, UnsupportedValue
from svc_kit.rpc.field_limits import limit


class PredictionPart(WireModel):
    """A part of the predicted text."""

    type: Literal["text"]
    text: str


class Prediction(WireModel):
    """Text that most of the answer is expected to repeat."""

    type: Literal["content"]
    content: Annotated[
        Annotated[str, Tag("~string")] | Annotated[list[PredictionPart], Tag("~array")], BY_KIND
    ]

    @property
    def text(self) -> str:
        """The whole text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatCompletionBody(CompletionFields, ReasoningFields, LegacyFunctionFields):
    """A request for the next message of a conversation."""

    route: ClassVar[str] = "/v1/chat/completions"
    policy: ClassVar[Policy] = {
        "include_reasoning": Ignored("reasoning is sent beside the answer", (True,)),
        "store": Ignored("chat completions are not stored; responses are", (False,)),
        "verbosity": Ignored("models have no such setting", ("medium",)),
        "audio": Refused(NOT_TEXT),
        "best_of": Refused("it belongs to /v1/completions", (1,)),
        "chat_format": Refused("use 'chat_template'"),
        "documents": Refused("put them into messages"),
        "echo": Refused("it belongs to /v1/completions", (False,)),
        "moderation": Refused("there is no moderation"),
        "prompt": Refused("it belongs to /v1/completions; use 'messages'"),
        "suffix": Refused("it belongs to /v1/completions", ("",)),
        "web_search_options": Refused("there is no search of the web"),
    }

    messages: Annotated[list[Message], Field(min_length=1)] = Field(
        description="The conversation. If the last message is the assistant's, it is continued."
    )
    max_completion_tokens: OutputLimit | None = Field(
        None, description="The maximum number of tokens of one answer; -1 means no limit."
    )
    logprobs: bool | None = Field(None, description="Send the log probability of each token.")
    top_logprobs: TopLogprobs | None = Field(
        None, description="How many alternatives to send with each token. Requires logprobs."
    )
    tools: (
        Annotated[list[ToolDefinition], limit(inference_service_pb2.Conversation, "tools")] | None
    ) = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prediction: Prediction | None = Field(
        None, description="Text that much of the answer repeats; it speeds up the answer."
    )
    modalities: list[Literal["text", "audio"]] | None = Field(
        None, description="Only text is supported."
    )

    reasoning_effort: Effort | None = Field(None, description="As reasoning.effort.")
    reasoning_format: Literal["none", "auto", "deepseek"] | None = Field(
        None, description="none leaves the reasoning in the content. Default: auto."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Additional variables of the chat template."
    )
    chat_template: str | None = Field(
        None, description="Replaces the model's template, if the operator allows it."
    )
    continue_final_message: bool | None = Field(
        None, description="Continue the last message. Default: true if it is the assistant's."
    )
    add_generation_prompt: bool | None = Field(
        None, description="False is supported only with continue_final_message."
    )

    @property
    def has_functions(self) -> bool:
        """Whether calls are `function_call`s."""
        return bool(self.functions)


def parse_chat(fields: Mapping[str, Any]) -> ChatCompletionBody:
    """Validate a body. Raises DomainErrors with OpenAI's field names."""
    body = validate(ChatCompletionBody, fields)
    if body.n_probs and body.logprobs is None:
        body = body.model_copy(update={"logprobs": True, "top_logprobs": body.n_probs})
    return body.model_copy(update=as_tools(body))


def chat_request(
    body: ChatCompletionBody, files: StoredFiles = NO_FILES
) -> inference_service_pb2.ChatRequest:
    """Convert a body; `files` are the files of its messages (`referenced_files`).

    Raises DomainErrors with OpenAI's field names.
    """
    _check_supported(body)
    limit = output_limit(body, "max_completion_tokens", "max_tokens", "n_predict")
    options = completion_options(body, limit)
    if body.prediction is not None:
        options.speculation.prediction = body.prediction.text
    if body.logprobs:
        options.output.top_logprobs = body.top_logprobs or 0
    chosen = body_reasoning(body)
    if chosen.budget_tokens is not None:
        options.thinking_budget_tokens = chosen.budget_tokens
    return inference_service_pb2.ChatRequest(
        model=body.model,
        conversation=_conversation(body, chosen, files),
        reasoning_format=_reasoning_format(body),
        options=options,
    )


def _check_supported(body: ChatCompletionBody) -> None:
    if body.modalities is not None and "audio" in body.modalities:
        raise UnsupportedValue(field="modalities", value="audio")
    if body.top_logprobs and not body.logprobs:
        raise InvalidField(field="top_logprobs", problem="it is only allowed with 'logprobs'")
    if body.add_generation_prompt is False and not body.continue_final_message:
        raise UnsupportedValue(field="add_generation_prompt", value="false")


def _conversation(
    body: ChatCompletionBody, chosen: ChosenReasoning, files: StoredFiles
) -> inference_service_pb2.Conversation:
    tools = chat_tools(body.tools or ())
    return inference_service_pb2.Conversation(
        messages=chat_messages(body.messages, files),
        tools=tools,
        tool_choice=chat_tool_choice(
            body.tool_choice, body.parallel_tool_calls, [tool.name for tool in tools]
        ),
        template=_template_options(body, chosen),
    )


def _reasoning_format(body: ChatCompletionBody) -> chat_pb2.ReasoningFormat:
    if body.reasoning_format == "none":
        return chat_pb2.REASONING_FORMAT_INLINE
    return chat_pb2.REASONING_FORMAT_SEPARATE


def body_reasoning(body: ChatCompletionBody) -> ChosenReasoning:
    """What the body says about reasoning. Raises InvalidField if two fields disagree."""
    in_kwargs = (body.chat_template_kwargs or {}).get("enable_thinking")
    return chosen_reasoning(body, body.reasoning_effort, in_kwargs)


def _template_options(
    body: ChatCompletionBody, chosen: ChosenReasoning
) -> chat_pb2.TemplateOptions:
    kwargs = {**(body.chat_template_kwargs or {})}
    kwargs.pop("enable_thinking", None)
    return chat_pb2.TemplateOptions(
        kwargs_json=json_text(kwargs or None),
        enable_thinking=chosen.enabled,
        continue_final_message=body.continue_final_message,
        template=body.chat_template or "",
        reasoning_effort=EFFORTS[chosen.effort],
    )
