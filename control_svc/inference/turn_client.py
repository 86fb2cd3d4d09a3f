"""Runs turns and counts prompt tokens over gRPC, on behalf of an object's project.

Token ids are always requested: the next attempt resumes from them. Upstreams in text mode have
none.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final, Protocol

import grpc.aio
from corral.inference.v1 import chat_pb2 as chat
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from control_svc.inference import turns
from control_svc.inference.client import SERVICE, Metadata, call_metadata, stream_messages
from control_svc.inference.generation_options import OPTIONS
from control_svc.inference.media import (
    Files,
    FileSource,
    check_media,
    content_part,
    has_media,
    part_names,
    read_files,
)
from control_svc.jobs.model import EngineDied
from dialects.openai.errors import CHAT_PARAMS, openai_name, openai_names
from dialects.shared.efforts import EFFORTS
from dialects.shared.errors import with_field
from svc_kit.auth.authenticator import ServiceToken
from svc_kit.auth.principal import Priority
from svc_kit.errors import DomainError, EngineRestarting, GrammarInvalid, SchemaInvalid
from svc_kit.rpc.client import translate_errors
from svc_kit.rpc.message_mapper import MessageMapper

_REASONS: Final[Mapping[int, turns.FinishReason]] = {
    generation.FINISH_REASON_STOP: turns.FinishReason.STOP,
    generation.FINISH_REASON_LENGTH: turns.FinishReason.LENGTH,
    generation.FINISH_REASON_TOOL_CALLS: turns.FinishReason.TOOL_CALLS,
}
_TOOL_FIELD: Final = re.compile(r"tools\[(\d+)\](.*)", re.DOTALL)


class RpcTurnClient:
    """A `TurnClient` and `TokenCounter` over a channel.

    The channel must not retry: workers count engine deaths.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        token: ServiceToken | None,
        files: FileSource,
        *,
        timeout_s: float,
    ) -> None:
        """`timeout_s` limits a turn, including time in queues."""
        self._stub = InferenceServiceStub(channel)
        self._token = token
        self._files = files
        self._timeout_s = timeout_s

    async def run(self, request: turns.TurnRequest) -> AsyncGenerator[turns.TurnEvent, None]:
        """Run a turn and yield its events. Raises the service's errors and EngineDied.

        Errors name fields as OpenAI does, since runs and responses store and show them.
        """
        if self._token is None:  # only services may set `keep_for`
            request = replace(request, keep_for="")
        accepted: generation.Accepted | None = None
        async with AsyncExitStack() as stack:
            stack.enter_context(part_names(request.messages))
            stack.enter_context(_tool_names(request.tools))
            stack.enter_context(openai_names(CHAT_PARAMS))
            stack.enter_context(_engine_deaths())
            sending = await stack.enter_async_context(AsyncExitStack())
            turn = await sending.enter_async_context(self._proto(request))
            call = self._stub.Chat(turn, metadata=self._metadata(request), timeout=self._timeout_s)
            del turn
            async for message in stack.enter_context(stream_messages(call)):
                kind = message.WhichOneof("event")
                if kind == "accepted":
                    accepted = message.accepted
                    await sending.aclose()  # the files need not be in memory any longer
                    continue
                if accepted is not None:  # a resumed turn that is complete sends no `started`
                    yield _started(accepted, message.started, request.tools)
                    accepted = None
                if kind == "delta":
                    yield message.delta
                elif kind == "finished":
                    yield _REASONS[message.finished.reason]
                elif kind == "done":
                    yield _usage(message.done.usage)

    @asynccontextmanager
    async def _proto(self, request: turns.TurnRequest) -> AsyncIterator[pb.ChatRequest]:
        """Convert a turn with its files, which are in memory during the block."""
        async with read_files(self._files, request.project, request.messages) as files:
            if any(has_media(message) for message in request.messages):
                yield await asyncio.to_thread(chat_request, request, files)
            else:
                yield chat_request(request, files)

    async def count(self, request: turns.TurnRequest) -> int:
        """Count the tokens of the prompt of a turn. Raises the service's errors."""
        names = part_names(request.messages), _tool_names(request.tools)
        with names[0], names[1], openai_names(CHAT_PARAMS):
            async with self._proto(request) as turn:
                count_request = pb.CountTokensRequest(
                    model=turn.model, conversation=turn.conversation
                )
                with translate_errors(SERVICE):
                    response = await self._stub.CountTokens(
                        count_request, metadata=self._metadata(request), timeout=self._timeout_s
                    )
        return response.prompt_tokens

    def _metadata(self, request: turns.TurnRequest) -> Metadata:
        priority = Priority[request.priority.name]
        return call_metadata(self._token, request.project, priority)


@contextmanager
def _tool_names(tools: Sequence[turns.TurnTool]) -> Iterator[None]:
    """Name tools in errors of the block by their places in the caller's request."""
    try:
        yield
    except DomainError as error:
        if error.field is None:
            raise
        field = _in_request(error.field, tools)
        if isinstance(error, SchemaInvalid) and any(field == each.grammar_field for each in tools):
            raise GrammarInvalid(field=field, problem=error.problem) from error.__cause__
        raise with_field(error, field) from error.__cause__


def _in_request(field: str, tools: Sequence[turns.TurnTool]) -> str:
    match = _TOOL_FIELD.match(field)
    if match is None or int(match[1]) >= len(tools):
        return field
    tool, inner = tools[int(match[1])], match[2]
    is_schema = inner == ".function.parameters"
    return (is_schema and tool.grammar_field) or (tool.field or tool.name) + inner


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

_MESSAGE: Final = MessageMapper(
    turns.TurnMessage,
    chat.ChatMessage,
    renamed={"calls": "tool_calls", "call_id": "tool_call_id"},
    only_domain=["parts"],
    only_message=["parts"],
)
_TOOL: Final = MessageMapper(turns.TurnTool, chat.Tool, only_domain=["field", "grammar_field"])
_CHOICE: Final = MessageMapper(
    turns.TurnChoice, chat.ToolChoice, renamed={"allowed": "allowed_names"}
)


def chat_request(request: turns.TurnRequest, files: Files) -> pb.ChatRequest:
    """Convert a turn; `files` are the files of its messages, by id.

    Raises InvalidField, UnsupportedValue or TooLong for a picture or a document.
    """
    messages = [
        _MESSAGE.to_message(each, parts=[content_part(part, files) for part in each.parts])
        for each in request.messages
    ]
    check_media(request.messages, messages)
    return pb.ChatRequest(
        model=request.model,
        conversation=pb.Conversation(
            messages=messages,
            tools=map(_TOOL.to_message, request.tools),
            tool_choice=_CHOICE.to_message(request.choice),
            template=chat.TemplateOptions(
                enable_thinking=request.enable_thinking,
                reasoning_effort=EFFORTS[request.effort],
            ),
        ),
        options=_options(request),
    )


def _options(request: turns.TurnRequest) -> generation.GenerationOptions:
    options = OPTIONS.to_message(request.options)
    options.sampling.seed = request.seed
    options.output.token_ids = True
    options.label = request.label
    reuse = options.cache.reuse or not options.cache.HasField("reuse")
    if request.keep_for and reuse and not options.deterministic:
        options.cache.keep_for = request.keep_for
    if request.max_tokens is not None:
        options.stopping.max_tokens = request.max_tokens
    if isinstance(request.format, turns.JsonSchema):
        options.constraint.json_schema = request.format.schema
    elif request.format is not None:
        options.constraint.json_object = True
    if request.token_ids:
        held = map(generation.ChosenLogprob.FromString, request.held_logprobs)
        options.resume.add(index=0, output_token_ids=request.token_ids, held_logprobs=held)
    return options


# ---- events


def _started(
    accepted: generation.Accepted, started: generation.Started, tools: Sequence[turns.TurnTool]
) -> turns.Started:
    # The ids are for `resume` alone, which an engine without them does not have.
    names = (name for name in accepted.ignored_options if name != "output.token_ids")
    ignored = (openai_name(name, CHAT_PARAMS) for name in names)
    return turns.Started(
        accepted.model,
        accepted.prompt_tokens,
        started.cached_tokens,
        tuple(_in_request(name, tools) for name in ignored),
    )


def _usage(usage: generation.Usage) -> turns.TurnUsage:
    return turns.TurnUsage(
        usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens
    )


class TokenCounter(Protocol):
    async def count(self, request: turns.TurnRequest) -> int:
        """Count the tokens of the prompt of a turn. Raises the errors of `TurnClient.run`."""
