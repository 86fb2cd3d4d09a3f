"""Request bodies of /api/chat and /api/generate, converted to requests of the inference service."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2
from pydantic import Field, Tag

from dialects.ollama.chat_turns import (
    ChatMessageBody,
    ToolSpec,
    chat_messages,
    chat_tools,
    image_names,
    image_parts,
)
from dialects.ollama.model_body import TRUNCATED, ModelBody
from dialects.ollama.model_options import OPTION_PARAMS, ModelOptions, generation_options
from dialects.shared.body_routes import check_route
from dialects.shared.fields import BY_KIND, TokenId, validate
from dialects.shared.generation_fields import TopLogprobs
from dialects.shared.parameters import Ignored, Policy, ignore_parameter
from svc_kit.errors import InvalidField

PARAMS: Final = {
    **OPTION_PARAMS,
    "constraint": "format",
    "conversation": "messages",
    "enable_thinking": "think",
    "reasoning_effort": "think",
}
"""The caller's names of ChatRequest fields."""
PROMPT_PARAMS: Final = {
    **PARAMS,
    "messages": "prompt",
    "token_ids": "context",
    "text": "prompt",
}
"""The caller's names of fields of a prompt."""
_ZERO_DURATION: Final = re.compile(r"[+-]?(?:0+(?:\.0*)?(?:h|m|s|ms|us|µs|ns)?)+")
Format = Annotated[
    Annotated[str, Tag("~string")] | Annotated[dict[str, Any], Tag("~object")], BY_KIND
]
_EFFORTS: Final = {
    "low": chat_pb2.REASONING_EFFORT_LOW,
    "medium": chat_pb2.REASONING_EFFORT_MEDIUM,
    "high": chat_pb2.REASONING_EFFORT_HIGH,
    "max": chat_pb2.REASONING_EFFORT_MAX,
}
Think = Annotated[
    Annotated[bool, Tag("~other")]
    | Annotated[Literal["low", "medium", "high", "max"], Tag("~string")],
    BY_KIND,
]
KeepAlive = Annotated[
    Annotated[float, Tag("~other")] | Annotated[str, Tag("~string")],
    BY_KIND,
]


class GenerationBody(ModelBody):
    """Fields that chats and prompts share."""

    policy: ClassVar[Policy] = {"shift": Ignored("an answer ends where the context is full")}

    stream: bool | None = Field(None, description="Send lines of JSON. Default: true.")
    format: Format | None = Field(None, description='"json", or a JSON Schema.')
    options: ModelOptions | None = None
    think: Think | None = Field(
        None, description="Whether to think, or how much. Default: if the model can."
    )
    keep_alive: KeepAlive | None = Field(
        None, description="0 without a prompt unloads the model. Otherwise ignored."
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[TopLogprobs, TRUNCATED] | None = None

    @property
    def streams(self) -> bool:
        """Whether lines are sent."""
        return self.stream is not False

    @property
    def unloads(self) -> bool:
        """Whether a body without a prompt unloads the model."""
        if isinstance(self.keep_alive, str):
            return _ZERO_DURATION.fullmatch(self.keep_alive) is not None
        return self.keep_alive == 0


class ChatBody(GenerationBody):
    """A request for the next message of a conversation."""

    messages: list[ChatMessageBody] | None = Field(
        None, description="The conversation. Empty: the model is loaded."
    )
    tools: list[ToolSpec] | None = None
    truncate: bool | None = Field(
        None, description="False refuses a chat that is too long. Default: its oldest turns go."
    )


class GenerateBody(GenerationBody):
    """A request to answer or continue a prompt."""

    policy: ClassVar[Policy] = {"truncate": Ignored("a prompt that is too long is 400", (False,))}

    prompt: str | None = Field(None, description="Empty: the model is loaded.")
    suffix: str | None = Field(None, description="The text after the answer, for code.")
    system: str | None = Field(None, description="The system message.")
    template: str | None = Field(None, description="Not supported.")
    context: list[TokenId] | None = Field(
        None, description="The `context` of an earlier answer, which is continued."
    )
    raw: bool | None = Field(None, description="Send the prompt without a template.")
    images: list[str] | None = Field(None, description="Pictures in base64.")

    @property
    def is_completion(self) -> bool:
        """Whether the prompt is used without a template."""
        return bool(self.raw or self.suffix)


def parse_chat(fields: Mapping[str, Any]) -> ChatBody:
    """Validate a body. Raises DomainErrors."""
    check_route(fields, "/api/chat")
    body = validate(ChatBody, fields)
    _ = body.model_name
    return body


def parse_generate(fields: Mapping[str, Any]) -> GenerateBody:
    """Validate a body. Raises DomainErrors."""
    check_route(fields, "/api/generate")
    body = validate(GenerateBody, fields)
    _ = body.model_name
    if body.template:
        problem = "templates of Ollama are not supported; the model's own is used"
        raise InvalidField(field="template", problem=problem)
    if body.is_completion and (body.system or body.context):
        field = "system" if body.system else "context"
        raise InvalidField(field=field, problem="it cannot be combined with 'raw' or 'suffix'")
    if body.is_completion and body.images:
        raise InvalidField(field="images", problem="it cannot be combined with 'raw' or 'suffix'")
    if body.context and (body.images or body.think):
        field = "images" if body.images else "think"
        raise InvalidField(field=field, problem="it cannot be combined with 'context'")
    return body


def chat_params(body: ChatBody) -> Mapping[str, str]:
    """The caller's names of fields of a chat."""
    return {**PARAMS, **image_names(body.messages or ())}


def generate_params(body: GenerateBody) -> Mapping[str, str]:
    """The caller's names of fields of a prompt."""
    index = 1 if body.system else 0
    names = {
        f"messages[{index}].content[{number}].image_url{suffix}": f"images[{number}]"
        for number in range(len(body.images or ()))
        for suffix in ("", ".url")
    }
    return {**PROMPT_PARAMS, **names}


def chat_request(body: ChatBody) -> inference_service_pb2.ChatRequest:
    """Convert a chat. Raises DomainErrors."""
    conversation = inference_service_pb2.Conversation(
        messages=chat_messages(body.messages or ()), tools=chat_tools(body.tools)
    )
    return _chat_request(body, conversation)


def prompt_request(body: GenerateBody) -> inference_service_pb2.ChatRequest:
    """Convert a prompt that is answered through the chat template. Raises DomainErrors."""
    messages = []
    if body.system:
        part = chat_pb2.ContentPart(text=body.system)
        messages.append(chat_pb2.ChatMessage(role=chat_pb2.ROLE_SYSTEM, parts=[part]))
    parts = image_parts("", body.images)
    parts.append(chat_pb2.ContentPart(text=body.prompt or ""))
    messages.append(chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER, parts=parts))
    request = _chat_request(body, inference_service_pb2.Conversation(messages=messages))
    request.options.output.token_ids = True  # for the context
    if body.context:  # thoughts would not be separated from the answer
        request.conversation.template.enable_thinking = False
    return request


def render_request(
    chat: inference_service_pb2.ChatRequest,
) -> inference_service_pb2.RenderChatRequest:
    """The request for the tokens of a chat's prompt."""
    return inference_service_pb2.RenderChatRequest(model=chat.model, conversation=chat.conversation)


def answered_request(
    body: GenerateBody, chat: inference_service_pb2.ChatRequest, prompt: Sequence[int]
) -> tuple[
    inference_service_pb2.ChatRequest | inference_service_pb2.GenerateRequest, Sequence[int]
]:
    """What is sent for a prompt, which the template has rendered to tokens: the chat, or the
    continuation of `context`; and the tokens of all of it."""
    if not body.context:
        return chat, prompt
    context = list(body.context or ())
    start = 1 if context[:1] == list(prompt[:1]) else 0  # one begin token
    request = inference_service_pb2.GenerateRequest(model=chat.model, options=chat.options)
    request.token_ids.ids.extend([*context, *prompt[start:]])
    return request, request.token_ids.ids


def completion_request(body: GenerateBody) -> inference_service_pb2.GenerateRequest:
    """Convert a prompt that is sent without a template."""
    request = inference_service_pb2.GenerateRequest(
        model=body.model_name, text=body.prompt or "", parse_special=True, options=_options(body)
    )
    if body.suffix:
        request.infill.suffix = body.suffix
    return request


def load_request(model: str) -> inference_service_pb2.GenerateRequest:
    """A request that computes one token of a prompt and nothing else: it loads the model."""
    request = inference_service_pb2.GenerateRequest(model=model)
    request.token_ids.ids.append(0)
    request.options.stopping.max_tokens = 0
    return request


def _options(body: GenerationBody) -> generation_pb2.GenerationOptions:
    if body.keep_alive is not None:
        ignore_parameter("keep_alive", "the operator decides which models stay loaded")
    return generation_options(
        body.options, body.format, logprobs=body.logprobs, top_logprobs=body.top_logprobs
    )


def _chat_request(
    body: GenerationBody, conversation: inference_service_pb2.Conversation
) -> inference_service_pb2.ChatRequest:
    template = conversation.template
    template.enable_thinking = body.think is not False  # Ollama's models think unless told not to
    template.require_thinking = bool(body.think)
    if isinstance(body.think, str):
        template.reasoning_effort = _EFFORTS[body.think]
    return inference_service_pb2.ChatRequest(
        model=body.model_name,
        conversation=conversation,
        reasoning_format=chat_pb2.REASONING_FORMAT_SEPARATE,
        options=_options(body),
    )
