"""Runs turns and counts prompt tokens over gRPC, on behalf of an object's project.

Token ids are always requested: the next attempt resumes from them.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol

import grpc.aio
from corral.inference.v1 import chat_pb2 as chat
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from control_svc.inference.client import SERVICE, call_metadata, stream_messages
from control_svc.inference.turns import (
    AudioPart,
    ChoiceMode,
    FinishReason,
    ImagePart,
    JsonSchema,
    RefusalPart,
    Started,
    TextPart,
    TurnChoice,
    TurnEvent,
    TurnFormat,
    TurnMessage,
    TurnPart,
    TurnRequest,
    TurnRole,
    TurnUsage,
)
from control_svc.jobs.model import EngineDied, JobPriority
from openai_wire.errors import CHAT_PARAMS, openai_names
from svc_kit.auth.authenticator import ServiceToken
from svc_kit.auth.principal import Priority
from svc_kit.errors import EngineRestarting
from svc_kit.rpc.client import translate_errors

_KEY_ID: Final = "turn"
_ROLES: Final[Mapping[TurnRole, chat.Role]] = {
    TurnRole.SYSTEM: chat.ROLE_SYSTEM,
    TurnRole.DEVELOPER: chat.ROLE_DEVELOPER,
    TurnRole.USER: chat.ROLE_USER,
    TurnRole.ASSISTANT: chat.ROLE_ASSISTANT,
    TurnRole.TOOL: chat.ROLE_TOOL,
}
_MODES: Final[Mapping[ChoiceMode | None, chat.ToolChoice.Mode]] = {
    None: chat.ToolChoice.MODE_UNSPECIFIED,
    ChoiceMode.NONE: chat.ToolChoice.MODE_NONE,
    ChoiceMode.AUTO: chat.ToolChoice.MODE_AUTO,
    ChoiceMode.REQUIRED: chat.ToolChoice.MODE_REQUIRED,
}
PRIORITIES: Final[Mapping[JobPriority, Priority]] = {
    JobPriority.INTERACTIVE: Priority.INTERACTIVE,
    JobPriority.NORMAL: Priority.NORMAL,
    JobPriority.BATCH: Priority.BATCH,
}
_REASONS: Final[Mapping[int, FinishReason]] = {
    generation.FINISH_REASON_STOP: FinishReason.STOP,
    generation.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    generation.FINISH_REASON_TOOL_CALLS: FinishReason.TOOL_CALLS,
}


class RpcTurnClient:
    """A `TurnClient` over a channel. The channel must not retry: workers count engine deaths."""

    def __init__(
        self, channel: grpc.aio.Channel, token: ServiceToken | None, *, timeout_s: float
    ) -> None:
        """`timeout_s` limits a turn, including time in queues."""
        self._stub = InferenceServiceStub(channel)
        self._token = token
        self._timeout_s = timeout_s

    async def run(self, request: TurnRequest) -> AsyncGenerator[TurnEvent, None]:
        """Run a turn and yield its events. Raises the service's errors and EngineDied.

        Errors name fields as OpenAI does, since runs and responses store and show them.
        """
        if self._token is None:  # only services may set `keep_for`
            request = replace(request, keep_for="")
        call = self._stub.Chat(
            chat_request(request),
            metadata=call_metadata(
                self._token, request.project, PRIORITIES[request.priority], _KEY_ID
            ),
            timeout=self._timeout_s,
        )
        accepted: generation.Accepted | None = None
        with openai_names(CHAT_PARAMS), _engine_deaths(), stream_messages(call) as messages:
            async for message in messages:
                kind = message.WhichOneof("event")
                if kind == "accepted":
                    accepted = message.accepted
                    continue
                if accepted is not None:  # a resumed turn that is complete sends no `started`
                    yield _started(accepted, message.started)
                    accepted = None
                if kind == "delta":
                    yield message.delta
                elif kind == "finished":
                    yield _REASONS[message.finished.reason]
                elif kind == "done":
                    yield _usage(message.done.usage)


@contextmanager
def _engine_deaths() -> Iterator[None]:
    """Raise EngineDied for an engine that restarts because of this turn."""
    try:
        yield
    except EngineRestarting as error:
        if error.phase is None:
            raise
        raise EngineDied(error) from error


# ---- requests


def chat_request(request: TurnRequest) -> pb.ChatRequest:
    """Convert a turn."""
    return pb.ChatRequest(
        model=request.model,
        conversation=pb.Conversation(
            messages=map(_message, request.messages),
            tools=[
                chat.Tool(
                    name=tool.name,
                    description=tool.description,
                    parameters_json=tool.parameters,
                    strict=tool.strict,
                )
                for tool in request.tools
            ],
            tool_choice=_choice(request.choice),
            template=chat.TemplateOptions(
                kwargs_json=request.template_values, enable_thinking=request.enable_thinking
            ),
        ),
        options=_options(request),
    )


def _options(request: TurnRequest) -> generation.GenerationOptions:
    options = generation.GenerationOptions.FromString(request.options)
    options.ClearField("num_choices")
    options.ClearField("resume")
    options.sampling.seed = request.seed
    options.output.token_ids = True
    options.label = request.label
    _set_keep_for(options, request.keep_for)
    if request.max_tokens is not None:
        options.stopping.max_tokens = request.max_tokens
    if request.format is not None:
        options.constraint.CopyFrom(_constraint(request.format))
    if request.token_ids:
        options.resume.add(index=0, output_token_ids=request.token_ids)
    return options


def _set_keep_for(options: generation.GenerationOptions, object_id: str) -> None:
    """Set the object of a turn, if its state may be reused; otherwise clear the field.

    A client's own value is never passed on, since the inference service trusts this service.
    """
    reuse = options.cache.reuse or not options.cache.HasField("reuse")
    if object_id and reuse and not options.deterministic:
        options.cache.keep_for = object_id
    elif options.HasField("cache"):
        options.cache.ClearField("keep_for")


def _constraint(format: TurnFormat) -> generation.Constraint:
    if isinstance(format, JsonSchema):
        return generation.Constraint(json_schema=format.schema)
    return generation.Constraint(json_object=True)


def _message(message: TurnMessage) -> chat.ChatMessage:
    return chat.ChatMessage(
        role=_ROLES[message.role],
        parts=map(_part, message.parts),
        tool_calls=[
            chat.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments)
            for call in message.calls
        ],
        tool_call_id=message.call_id,
        name=message.name,
        reasoning=message.reasoning,
    )


def _part(part: TurnPart) -> chat.ContentPart:
    match part:
        case TextPart(text):
            return chat.ContentPart(text=text)
        case RefusalPart(text):
            return chat.ContentPart(refusal=text)
        case ImagePart(data, media_type, detail):
            media = chat.Media(data=data, media_type=media_type, detail=detail)
            return chat.ContentPart(image=media)
        case AudioPart(data, media_type):
            return chat.ContentPart(audio=chat.Media(data=data, media_type=media_type))


def _choice(choice: TurnChoice) -> chat.ToolChoice:
    return chat.ToolChoice(
        mode=_MODES[choice.mode], allowed_names=choice.allowed, parallel=choice.parallel
    )


# ---- events


def _started(accepted: generation.Accepted, started: generation.Started) -> Started:
    return Started(accepted.model, accepted.prompt_tokens, started.cached_tokens)


def _usage(usage: generation.Usage) -> TurnUsage:
    return TurnUsage(
        usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens
    )


class RpcTokenCounter:
    """A `TokenCounter` over a channel."""

    def __init__(
        self, channel: grpc.aio.Channel, token: ServiceToken | None, *, timeout_s: float
    ) -> None:
        self._stub = InferenceServiceStub(channel)
        self._token = token
        self._timeout_s = timeout_s

    async def count(self, request: TurnRequest) -> int:
        """Count the tokens of the prompt of a turn. Raises the service's errors."""
        turn = chat_request(request)
        count_request = pb.CountTokensRequest(model=turn.model, conversation=turn.conversation)
        metadata = call_metadata(
            self._token, request.project, PRIORITIES[request.priority], _KEY_ID
        )
        with translate_errors(SERVICE):
            response = await self._stub.CountTokens(
                count_request, metadata=metadata, timeout=self._timeout_s
            )
        return response.prompt_tokens


class TokenCounter(Protocol):
    """Counts prompt tokens."""

    async def count(self, request: TurnRequest) -> int:
        """Count the tokens of the prompt of a turn. Raises the errors of `TurnClient.run`."""
