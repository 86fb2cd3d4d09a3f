"""Runs lines of a batch through the inference service, on behalf of the batch's project.

Requests are parsed and responses are written by `dialects`, which the gateway uses too. A line
thus gets the same response or error as a request over HTTP.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import grpc.aio
import orjson
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.generation_pb2 import PRIORITY_BATCH
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from control_svc.batches.lines import LineResult, PendingLine, line_id
from control_svc.batches.model import NO_TOKENS, Batch, BatchEndpoint, LineState, TokenUsage
from control_svc.batches.result_lines import answered_line, refused_line
from control_svc.inference.client import SERVICE, Metadata, call_metadata, stream_messages
from control_svc.inference.media import FileSource
from dialects.anthropic.errors import with_anthropic_names
from dialects.anthropic.message_request import convert_message, parse_message
from dialects.anthropic.objects import CollectedMessage
from dialects.openai.chat.chat_request import convert_chat, parse_chat
from dialects.openai.chat.completion_request import parse_completion, prompt_requests
from dialects.openai.chat.embeddings import embed_request, embedding_list, parse_embedding
from dialects.openai.chat.messages import referenced_files
from dialects.openai.chat.objects import (
    CHAT_ID,
    COMPLETION_ID,
    ChatCompletion,
    TextCompletion,
    chat_params,
    completion_params,
    render_echoes,
)
from dialects.openai.envelope import Envelope
from dialects.openai.errors import EMBEDDING_PARAMS, openai_names, prompt_names
from dialects.shared.errors import renamed
from dialects.shared.ids import random_suffix
from dialects.shared.json_body import check_depth
from svc_kit.auth.authenticator import ServiceToken
from svc_kit.auth.principal import Priority
from svc_kit.errors import DomainError, InternalError, UnsupportedValue
from svc_kit.errors.status import REQUEST_ID_KEY, is_retryable, request_id_of
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.logs import project_var
from svc_kit.rpc.client import translate_errors

_log = logging.getLogger(__name__)
_INLINE_PARSE_BYTES: Final = 128 * 1024
"""Larger requests are parsed in a thread, since parsing takes more than 5 ms."""
_MAX_VECTORS: Final = 2048
"""Maximum number of embeddings in memory, equal to the maximum of one line."""
ResponseRunner = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Takes a project and the body of a request, and returns the response object."""
GenerationT = TypeVar("GenerationT", pb.ChatRequest, pb.GenerateRequest)


class _Collector(Protocol):
    def add(self, message: Any, call: int, /) -> None: ...
    def as_object(self) -> dict[str, object]: ...


@dataclass(frozen=True, slots=True)
class _Call:
    """The context of the gRPC calls of one line."""

    project: str
    metadata: Metadata
    timeout_s: float
    request_ids: list[str]
    """Request ids of completed calls."""


class LineClient:
    """Runs lines over one channel (a `LineRunner`)."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        token: ServiceToken | None,
        *,
        fingerprint: str,
        timeout_s: float,
        responses: ResponseRunner,
        files: FileSource,
    ) -> None:
        """`responses` runs lines of /v1/responses.

        If `token` is None, the inference service must accept callers without a key; all lines then
        run as one project.
        """
        self._stub = InferenceServiceStub(channel)
        self._token = token
        self._fingerprint = fingerprint
        self._timeout_s = timeout_s
        self._responses = responses
        self._files = files
        self._vectors = FairSemaphore(_MAX_VECTORS)
        self._endpoints: Mapping[BatchEndpoint, Callable[..., Awaitable[dict[str, Any]]]] = {
            BatchEndpoint.CHAT_COMPLETIONS: self._chat,
            BatchEndpoint.COMPLETIONS: self._complete,
            BatchEndpoint.EMBEDDINGS: self._embed,
            BatchEndpoint.RESPONSES: self._respond,
            BatchEndpoint.MESSAGES: self._message,
        }

    async def run(self, project: str, batch: Batch, line: PendingLine) -> LineResult:
        """See `LineRunner`."""
        metadata = call_metadata(self._token, project, Priority.BATCH)
        call = _Call(project, metadata, self._timeout_s, [])
        fields = await _parse(line.request)
        try:
            check_depth(fields["body"])
            body = await self._endpoints[batch.endpoint](fields["body"], call)
            usage = _usage(body["usage"])
        except DomainError as error:
            if is_retryable(error):
                raise
            return _failure(batch, line, fields["custom_id"], error)
        except Exception:  # a bug must fail only the line that hits it
            request_id = line_id(batch.id, line.number)
            _log.exception("request %s failed", request_id)
            internal = InternalError(request_id=request_id)
            return _failure(batch, line, fields["custom_id"], internal)
        request_id = call.request_ids[0] if call.request_ids else ""
        text = answered_line(batch, line.number, fields["custom_id"], request_id, body)
        return LineResult(line.number, LineState.COMPLETED, text, usage)

    async def _chat(self, fields: Mapping[str, Any], call: _Call) -> dict[str, Any]:
        body = parse_chat(fields)
        _check_not_streamed(body.stream)
        collector = ChatCompletion(self._envelope(CHAT_ID, body.model), body)
        references = list(referenced_files(body.messages))
        async with self._files.open(call.project, references) as files:
            request = _with_batch_priority(await convert_chat(body, files))
            with openai_names(chat_params(body)):
                await _collect(self._stub.Chat, request, call, collector)
        return collector.as_object()

    async def _message(self, fields: Mapping[str, Any], call: _Call) -> dict[str, Any]:
        body = parse_message(fields)
        _check_not_streamed(body.stream)
        collector = CollectedMessage(body)
        request, paths = await convert_message(body)
        with renamed(partial(with_anthropic_names, paths=paths)):
            await _collect(self._stub.Chat, _with_batch_priority(request), call, collector)
        return collector.as_object()

    async def _complete(self, fields: Mapping[str, Any], call: _Call) -> dict[str, Any]:
        body = parse_completion(fields)
        _check_not_streamed(body.stream)
        with openai_names(completion_params(body)):
            echoes = await render_echoes(
                body, lambda tokens: self._detokenize(body.model, tokens, call)
            )
            envelope = self._envelope(COMPLETION_ID, body.model)
            collector = TextCompletion(envelope, body, echoes)
            requests = prompt_requests(body)
            for number, request in enumerate(requests):
                with prompt_names(number, len(requests)):
                    await _collect(
                        self._stub.Generate, _with_batch_priority(request), call, collector, number
                    )
        return collector.as_object()

    async def _embed(self, fields: Mapping[str, Any], call: _Call) -> dict[str, Any]:
        body = parse_embedding(fields)
        request = embed_request(body)
        request.priority = request.priority or PRIORITY_BATCH
        async with self._vectors.reserve(len(request.inputs), project_var.get()):
            with openai_names(EMBEDDING_PARAMS), translate_errors(SERVICE):
                rpc = self._stub.Embed(request, metadata=call.metadata, timeout=call.timeout_s)
                reply = await rpc
                call.request_ids.append(await _request_id(rpc))
            return embedding_list(body, reply)

    async def _respond(self, fields: Mapping[str, Any], call: _Call) -> dict[str, Any]:
        return await self._responses(call.project, fields)

    async def _detokenize(self, model: str, tokens: Sequence[int], call: _Call) -> str:
        request = pb.DetokenizeRequest(model=model, token_ids=tokens, special_tokens=True)
        with translate_errors(SERVICE):
            response = await self._stub.Detokenize(
                request, metadata=call.metadata, timeout=call.timeout_s
            )
        return response.text

    def _envelope(self, prefix: str, model: str) -> Envelope:
        return Envelope(prefix + random_suffix(), int(time.time()), model, self._fingerprint)


def _with_batch_priority(request: GenerationT) -> GenerationT:
    """Set the priority in the request, unless it has one. The inference service ignores priorities
    in metadata without a service token.
    """
    scheduling = request.options.scheduling
    scheduling.priority = scheduling.priority or PRIORITY_BATCH
    return request


async def _collect(
    method: Callable[..., Any], request: Any, call: _Call, collector: _Collector, number: int = 0
) -> None:
    """Read a stream into a collector."""
    rpc = method(request, metadata=call.metadata, timeout=call.timeout_s)
    with stream_messages(rpc) as events:
        async for event in events:
            collector.add(event, number)
        call.request_ids.append(await _request_id(rpc))


async def _request_id(rpc: Any) -> str:
    for key, value in await rpc.initial_metadata() or ():
        if key == REQUEST_ID_KEY:
            return str(value)
    return ""


async def _parse(request: bytes) -> dict[str, Any]:
    if len(request) <= _INLINE_PARSE_BYTES:
        return orjson.loads(request)  # type: ignore[no-any-return]  # validated as an object
    return await asyncio.to_thread(orjson.loads, request)


def _check_not_streamed(stream: bool | None) -> None:
    if stream:
        raise UnsupportedValue(field="stream", value="true")


def _failure(batch: Batch, line: PendingLine, custom_id: str, error: DomainError) -> LineResult:
    cause = error.__cause__
    request_id = request_id_of(cause) if isinstance(cause, grpc.aio.AioRpcError) else ""
    text = refused_line(batch, line.number, custom_id, request_id, error)
    return LineResult(line.number, LineState.FAILED, text, NO_TOKENS)


def _usage(usage: Mapping[str, Any] | None) -> TokenUsage:
    """Convert the `usage` of a response; None if no model was called."""
    if usage is None:
        return NO_TOKENS
    if "cache_read_input_tokens" in usage:  # Anthropic's, which are not among the input tokens
        cached = usage["cache_read_input_tokens"]
        return TokenUsage(
            input_tokens=usage["input_tokens"] + cached,
            cached_tokens=cached,
            output_tokens=usage["output_tokens"],
            reasoning_tokens=usage["output_tokens_details"]["thinking_tokens"],
        )
    if "input_tokens" in usage:
        return TokenUsage(
            input_tokens=usage["input_tokens"],
            cached_tokens=usage["input_tokens_details"]["cached_tokens"],
            output_tokens=usage["output_tokens"],
            reasoning_tokens=usage["output_tokens_details"]["reasoning_tokens"],
        )
    return TokenUsage(
        input_tokens=usage["prompt_tokens"],
        cached_tokens=usage.get("prompt_tokens_details", {}).get("cached_tokens", 0),
        output_tokens=usage.get("completion_tokens", 0),
        reasoning_tokens=usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0),
    )
