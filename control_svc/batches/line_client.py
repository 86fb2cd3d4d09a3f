"""Runs lines of a batch through the inference service, on behalf of the batch's project.

Requests are parsed and responses are written by `dialects`, which the gateway uses too. A line
thus gets the same response or error as a request over HTTP.
"""

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
from dialects.anthropic.message_request import message_request, parse_message
from dialects.anthropic.objects import CollectedMessage
from dialects.llama_server import completion as llama_server
from dialects.llama_server import scores
from dialects.llama_server.events import Continuations
from dialects.ollama import embeddings as ollama_embeddings
from dialects.ollama import requests as ollama
from dialects.ollama.events import Answer, ChatAnswer, PromptAnswer
from dialects.ollama.truncation import shorten
from dialects.openai.chat.chat_request import chat_request, parse_chat
from dialects.openai.chat.completion_request import parse_completion, prompt_requests
from dialects.openai.chat.embeddings import embed_request, embedding_list, parse_embedding
from dialects.openai.chat.messages import referenced_files
from dialects.openai.chat.objects import (
    CHAT_ID,
    COMPLETION_ID,
    CollectedChat,
    CollectedCompletion,
    chat_params,
    completion_params,
    render_echoes,
)
from dialects.openai.envelope import Envelope
from dialects.openai.errors import EMBEDDING_PARAMS, ParamNames, openai_names, prompt_names
from dialects.shared.errors import renamed
from dialects.shared.generation_fields import gather_output
from dialects.shared.ids import random_suffix
from dialects.shared.json_body import check_depth, load_exact
from svc_kit.auth.authenticator import ServiceToken
from svc_kit.auth.principal import Priority
from svc_kit.errors import (
    ContextLengthExceeded,
    DomainError,
    InternalError,
    MissingField,
    UnsupportedValue,
)
from svc_kit.errors.status import REQUEST_ID_KEY, is_retryable, request_id_of
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.logs import project_var
from svc_kit.off_loop import off_loop
from svc_kit.rpc.client import translate_errors
from svc_kit.rpc.movable_stream import WHOLE_KEY

_log = logging.getLogger(__name__)
_ITEM_BYTES: Final = 256
"""Bytes of a request that count as an item of `off_loop`: 125 KiB take about 5 ms."""
_MAX_VECTORS: Final = 2048
"""Maximum number of embeddings in memory, equal to the maximum of one line."""
ResponseRunner = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Takes a project and the body of a request, and returns the response object."""
GenerationT = TypeVar("GenerationT", bound=pb.ChatRequest | pb.GenerateRequest)


class _Collector(Protocol):
    def add(self, message: Any, call: int, /) -> None: ...
    def as_object(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Call:
    """The context of the gRPC calls of one line."""

    project: str
    metadata: Metadata
    timeout_s: float
    num_bytes: int
    """Of the line."""
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
        self._endpoints: Mapping[BatchEndpoint, Callable[..., Awaitable[Any]]] = {
            BatchEndpoint.CHAT_COMPLETIONS: self._chat,
            BatchEndpoint.COMPLETIONS: self._complete,
            BatchEndpoint.EMBEDDINGS: self._embed,
            BatchEndpoint.RESPONSES: self._respond,
            BatchEndpoint.MESSAGES: self._message,
            BatchEndpoint.OLLAMA_CHAT: self._ollama_chat,
            BatchEndpoint.OLLAMA_GENERATE: self._ollama_prompt,
            BatchEndpoint.OLLAMA_EMBED: self._ollama_embed,
            BatchEndpoint.COMPLETION: self._continue,
            BatchEndpoint.EMBEDDING: self._embed_content,
        }

    async def run(self, project: str, batch: Batch, line: PendingLine) -> LineResult:
        """See `LineRunner`."""
        metadata = call_metadata(self._token, project, Priority.BATCH)
        call = _Call(project, metadata, self._timeout_s, len(line.request), [])
        try:
            # Validated as an object.
            fields = await off_loop(len(line.request) // _ITEM_BYTES, load_exact, line.request)
            check_depth(line.request)
            body = await self._endpoints[batch.endpoint](fields["body"], call)
            usage = _usage(body)
        except DomainError as error:
            if is_retryable(error):
                raise
            return _failure(batch, line, error)
        except Exception:  # a bug must fail only the line that hits it
            request_id = line_id(batch.id, line.number)
            _log.exception("request %s failed", request_id)
            internal = InternalError(request_id=request_id)
            return _failure(batch, line, internal)
        request_id = call.request_ids[-1] if call.request_ids else ""
        text = answered_line(batch, line.number, fields["custom_id"], request_id, body)
        return LineResult(line.number, LineState.COMPLETED, text, usage)

    async def _chat(self, fields: Mapping[str, Any], call: _Call) -> object:
        body = parse_chat(fields)
        _check_not_streamed(body.stream)
        collector = CollectedChat(self._envelope(CHAT_ID, body.model), body)
        references = list(referenced_files(body.messages))
        async with self._files.open(call.project, references) as files:
            num_bytes = call.num_bytes + sum(len(file.data) for file in files.values())
            convert = partial(chat_request, files=files)
            request = await off_loop(num_bytes // _ITEM_BYTES, convert, body)
            _with_line_options(request)
            with openai_names(chat_params(body)):
                await _collect(self._stub.Chat, request, call, collector)
        return collector.as_object()

    async def _message(self, fields: Mapping[str, Any], call: _Call) -> object:
        body = parse_message(fields)
        _check_not_streamed(body.stream)
        collector = CollectedMessage(body)
        num_items = call.num_bytes // _ITEM_BYTES
        request, paths = await off_loop(num_items, message_request, body)
        with renamed(partial(with_anthropic_names, paths=paths)):
            await _collect(self._stub.Chat, _with_line_options(request), call, collector)
        return collector.as_object()

    async def _complete(self, fields: Mapping[str, Any], call: _Call) -> object:
        body = parse_completion(fields)
        _check_not_streamed(body.stream)
        with openai_names(completion_params(body)):
            echoes = await render_echoes(
                body, lambda tokens: self._detokenize(body.model, tokens, call)
            )
            envelope = self._envelope(COMPLETION_ID, body.model)
            collector = CollectedCompletion(envelope, body, echoes)
            requests = prompt_requests(body)
            for number, request in enumerate(requests):
                with prompt_names(number, len(requests)):
                    await _collect(
                        self._stub.Generate, _with_line_options(request), call, collector, number
                    )
        return collector.as_object()

    async def _embed(self, fields: Mapping[str, Any], call: _Call) -> object:
        body = parse_embedding(fields)
        return embedding_list(body, await self._vectors_of(embed_request(body), call))

    async def _ollama_embed(self, fields: Mapping[str, Any], call: _Call) -> object:
        body = ollama_embeddings.parse_embed(fields)
        answer = ollama_embeddings.EmbedAnswer(body.written_name)
        request = ollama_embeddings.embed_request(body)
        names = ollama_embeddings.EMBED_PARAMS
        return answer.as_object(await self._vectors_of(request, call, names))

    async def _embed_content(self, fields: Mapping[str, Any], call: _Call) -> object:
        request = scores.embed_request(scores.parse_embedding(fields))
        reply = await self._vectors_of(request, call, scores.EMBEDDING_PARAMS)
        return scores.embedding_list(reply)

    async def _vectors_of(
        self, request: pb.EmbedRequest, call: _Call, names: ParamNames = EMBEDDING_PARAMS
    ) -> pb.EmbedResponse:
        request.priority = request.priority or PRIORITY_BATCH
        async with self._vectors.reserve(len(request.inputs), project_var.get()):
            with openai_names(names):
                reply: pb.EmbedResponse = await self._unary(self._stub.Embed, request, call)
                return reply

    async def _ollama_chat(self, fields: Mapping[str, Any], call: _Call) -> object:
        body = ollama.parse_chat(fields)
        _check_not_streamed(body.stream)
        if not body.messages:
            raise MissingField(field="messages")
        answer = ChatAnswer(body.written_name)
        request = await off_loop(call.num_bytes // _ITEM_BYTES, ollama.chat_request, body)
        with openai_names(ollama.chat_params(body)):
            try:
                await self._chat_of(request, call, answer)
            except ContextLengthExceeded as error:
                count = partial(self._unary, self._stub.CountTokens, call=call)
                if body.truncate is False or not await shorten(
                    request, error.context_tokens, count
                ):
                    raise
                await self._chat_of(request, call, answer)
        return answer.as_object()

    async def _ollama_prompt(self, fields: Mapping[str, Any], call: _Call) -> object:
        body = ollama.parse_generate(fields)
        _check_not_streamed(body.stream)
        if not body.prompt:
            raise MissingField(field="prompt")
        request: pb.ChatRequest | pb.GenerateRequest
        prompt: Sequence[int] | None = None
        with openai_names(ollama.generate_params(body)):
            if body.is_completion:
                request = ollama.completion_request(body)
            else:
                num_items = call.num_bytes // _ITEM_BYTES
                request = await off_loop(num_items, ollama.prompt_request, body)
                if not body.images:
                    render = ollama.render_request(request)
                    rendered = await self._unary(self._stub.RenderChat, render, call)
                    request, prompt = ollama.answered_request(body, request, rendered.token_ids)
            answer = PromptAnswer(body.written_name, prompt)
            await self._chat_of(request, call, answer)
        return answer.as_object()

    async def _chat_of(
        self, request: pb.ChatRequest | pb.GenerateRequest, call: _Call, answer: Answer
    ) -> None:
        is_chat = isinstance(request, pb.ChatRequest)
        method = self._stub.Chat if is_chat else self._stub.Generate
        await _collect(method, _with_line_options(request), call, answer)

    async def _continue(self, fields: Mapping[str, Any], call: _Call) -> object:
        body = llama_server.parse_continuation(fields)
        _check_not_streamed(body.stream)
        tokenize = partial(self._unary, self._stub.Tokenize, call=call)
        body = await llama_server.with_token_prompt(body, tokenize)
        answers = Continuations(body, llama_server.prompts_of(body))
        with openai_names(llama_server.COMPLETION_PARAMS):
            for number, request in enumerate(llama_server.continuation_requests(body)):
                _with_line_options(request)
                await _collect(self._stub.Generate, request, call, answers, number)
        return answers.as_object()

    async def _respond(self, fields: Mapping[str, Any], call: _Call) -> object:
        return await self._responses(call.project, fields)

    async def _detokenize(self, model: str, tokens: Sequence[int], call: _Call) -> str:
        request = pb.DetokenizeRequest(model=model, token_ids=tokens, special_tokens=True)
        reply: pb.DetokenizeResponse = await self._unary(self._stub.Detokenize, request, call)
        return reply.text

    @staticmethod
    async def _unary(method: Callable[..., Any], request: Any, call: _Call) -> Any:
        with translate_errors(SERVICE):
            rpc = method(request, metadata=call.metadata, timeout=call.timeout_s)
            reply = await rpc
            call.request_ids.append(await _request_id(rpc))
        return reply

    def _envelope(self, prefix: str, model: str) -> Envelope:
        return Envelope(prefix + random_suffix(), int(time.time()), model, self._fingerprint)


def _with_line_options(request: GenerationT) -> GenerationT:
    """Set the priority in the request, unless it has one, since the inference service ignores
    priorities in metadata without a service token, and let its answer come in few messages.
    """
    gather_output(request)
    scheduling = request.options.scheduling
    scheduling.priority = scheduling.priority or PRIORITY_BATCH
    return request


async def _collect(
    method: Callable[..., Any], request: Any, call: _Call, collector: _Collector, number: int = 0
) -> None:
    metadata = (*call.metadata, (WHOLE_KEY, "1"))
    rpc = method(request, metadata=metadata, timeout=call.timeout_s)
    with stream_messages(rpc) as events:
        async for event in events:
            collector.add(event, number)
        call.request_ids.append(await _request_id(rpc))


async def _request_id(rpc: Any) -> str:
    for key, value in await rpc.initial_metadata() or ():
        if key == REQUEST_ID_KEY:
            return str(value)
    return ""


def _check_not_streamed(stream: bool | None) -> None:
    if stream:
        raise UnsupportedValue(field="stream", value="true")


def _failure(batch: Batch, line: PendingLine, error: DomainError) -> LineResult:
    custom_id = orjson.loads(line.request)["custom_id"]
    cause = error.__cause__
    request_id = request_id_of(cause) if isinstance(cause, grpc.aio.AioRpcError) else ""
    text = refused_line(batch, line.number, custom_id, request_id, error)
    return LineResult(line.number, LineState.FAILED, text, NO_TOKENS)


def _usage(body: Any) -> TokenUsage:
    """The tokens of an answer, in the form of its endpoint. Vectors of llama-server have none."""
    if isinstance(body, list):  # of llama-server, one for each prompt
        return sum(map(_usage, body), NO_TOKENS)
    if "usage" in body:
        return NO_TOKENS if body["usage"] is None else _openai_usage(body["usage"])
    return TokenUsage(
        input_tokens=body.get("prompt_eval_count", body.get("tokens_evaluated", 0)),
        cached_tokens=body.get("tokens_cached", 0),
        output_tokens=body.get("eval_count", body.get("tokens_predicted", 0)),
    )


def _openai_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """Convert the `usage` of OpenAI's and Anthropic's answers."""
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
