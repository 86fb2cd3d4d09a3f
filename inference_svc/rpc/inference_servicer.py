"""The gRPC servicer of InferenceService."""

from collections.abc import AsyncGenerator, AsyncIterator, MutableSequence, Sequence
from functools import partial
from typing import Final

import grpc
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import inference_service_pb2_grpc as rpc

from inference_svc.chat.tokenization import TextToTokenize
from inference_svc.model_pool.eviction import ModelState
from inference_svc.models.metadata import ModelClass, ModelFile
from inference_svc.rpc import model_info
from inference_svc.rpc.call import Caller
from inference_svc.rpc.embeddings import EmbeddingService
from inference_svc.rpc.generation import GenerationService
from inference_svc.rpc.generation_span import GenerationSpan, operation_attributes
from inference_svc.rpc.pages import page
from inference_svc.rpc.streaming import stream_responses
from inference_svc.sessions import SessionLog
from inference_svc.usage import RecordUsage
from svc_kit.auth.principal import current_principal
from svc_kit.auth.scopes import Scope
from svc_kit.errors import InvalidField, MissingField, ScopeMissing
from svc_kit.off_loop import off_loop
from svc_kit.tracing.span import Attributes, current_span, running_span

Context = grpc.aio.ServicerContext[object, object]
_PART_TOKENS: Final = 1 << 16


class InferenceServicer(rpc.InferenceServiceServicer):
    """Implements InferenceService over the model pool."""

    def __init__(
        self,
        generating: GenerationService,
        embedding: EmbeddingService,
        count: RecordUsage,
        sessions: SessionLog,
    ) -> None:
        """`count` records the usage of a generation when it ends, and `sessions` all of it."""
        self._sessions = sessions
        self._count = count
        self._pool = generating.pool
        self._generating = generating
        self._embedding = embedding

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Stream a raw continuation."""
        with GenerationSpan("text_completion", request) as span:
            async with self._generating.call(request, ModelFile.check_generates) as call:
                accepted, turns = await self._generating.generate(call)
                async for response in stream_responses(
                    accepted, turns, self._count, self._sessions, span
                ):
                    yield response

    async def Chat(
        self, request: pb.ChatRequest, context: Context
    ) -> AsyncIterator[pb.ChatResponse]:
        """Stream the next turn of a conversation."""
        with GenerationSpan("chat", request) as span:
            async with self._generating.call(request, ModelFile.check_chats) as call:
                accepted, turns = await self._generating.chat(call)
                async for response in stream_responses(
                    accepted, turns, self._count, self._sessions, span
                ):
                    yield response

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        """Embed texts or token lists."""
        find = self._pool.catalog.find_model
        entry = find(request.model, ModelClass.ENCODER, operation="embed", project=_project())
        with running_span(current_span().child(f"embeddings {entry.name}")) as span:
            span.set(operation_attributes("embeddings", request.model or entry.name))
            async with self._pool.use(entry, ModelFile.check_embeds) as model:
                answer = await self._embedding.embed(request, model, Caller.current())
                if request.with_digest:
                    await entry.digest_computed.wait()
                    answer.model_digest = entry.digest
                span.set(_embedding_attributes(answer))
                return answer

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        """Rank documents by relevance to a query."""
        find = self._pool.catalog.find_model
        entry = find(request.model, ModelClass.RERANKER, operation="rerank", project=_project())
        async with self._pool.use(entry, ModelFile.check_ranks) as model:
            return await self._embedding.rerank(request, model, Caller.current())

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """Convert text to token ids."""
        model = await self._generating.processor(request.model)
        text = TextToTokenize(request.text, request.add_special, request.parse_special)
        tokens = await model.tokenizer.tokenize(text, field="text")
        vocabulary = model.vocabulary

        def respond(tokens: Sequence[int]) -> pb.TokenizeResponse:
            ids = tokens if request.pieces else []
            pieces = [vocabulary.piece(token, True) for token in ids]
            reply = pb.TokenizeResponse(pieces=pieces)
            _add_tokens(reply.token_ids, tokens)
            return reply

        return await off_loop(len(tokens), respond, tokens)

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: Context
    ) -> pb.DetokenizeResponse:
        """Convert token ids to text."""
        model = await self._generating.processor(request.model)
        detokenize = partial(model.vocabulary.detokenize, special=request.special_tokens)
        text = await off_loop(len(request.token_ids), detokenize, request.token_ids)
        return pb.DetokenizeResponse(text=text)

    async def CountTokens(
        self, request: pb.CountTokensRequest, context: Context
    ) -> pb.CountTokensResponse:
        """Count the tokens of a prompt of Generate or Chat, or of each of several texts."""
        model = await self._generating.processor(request.model)
        prompt = request.WhichOneof("prompt")
        if request.texts and prompt is not None:
            raise InvalidField(field="texts", problem="it cannot be combined with a prompt")
        if request.texts:
            counts = await self._embedding.count_each(request.texts, model)
            return pb.CountTokensResponse(prompt_tokens=sum(counts), text_tokens=counts)
        tokens: Sequence[int]
        match prompt:
            case "conversation":
                _, tokens = await self._generating.render(request.model, request.conversation)
            case "text":
                text = TextToTokenize(request.text, add_special=True)
                tokens = await model.tokenizer.tokenize(text, field="text")
            case _:
                raise MissingField(field="prompt")
        return pb.CountTokensResponse(prompt_tokens=len(tokens))

    async def RenderChat(
        self, request: pb.RenderChatRequest, context: Context
    ) -> pb.RenderChatResponse:
        prompt, tokens = await self._generating.render(request.model, request.conversation)
        reply = pb.RenderChatResponse(text=prompt.text)
        await off_loop(len(tokens), partial(_add_tokens, reply.token_ids), tokens)
        return reply

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        """List models and adapters, sorted by name."""
        project = _project()
        models = {(each.name,): each for each in self._pool.catalog.visible_models(project)}
        described = {key: model_info.model(each) for key, each in models.items()}
        if request.pending:
            if not current_principal().has(Scope.ADMIN_READ):
                method = "ListModels with 'pending'"
                raise ScopeMissing(scope=Scope.ADMIN_READ.value, method=method)
            for pending in self._pool.catalog.pending.values():
                described[pending.name,] = model_info.watched_model(pending)
        shown, next_token = page(("models", project), described, request)
        return pb.ListModelsResponse(models=shown, next_page_token=next_token)

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        """Return one model; its template is included even if it is not loaded."""
        catalog, project = self._pool.catalog, _project()
        entry = catalog.resolve(request.model, project).model
        if entry.resident.state is not ModelState.FAILED:
            await self._pool.processor(entry)
        resolved = catalog.resolve(request.model, project)
        return pb.GetModelResponse(model=model_info.model(resolved))


def _embedding_attributes(answer: pb.EmbedResponse) -> Attributes:
    return {
        "gen_ai.response.model": answer.model,
        "gen_ai.usage.input_tokens": answer.prompt_tokens,
        "gen_ai.embeddings.dimension.count": len(answer.embeddings[0].values),
    }


def _project() -> str:
    return current_principal().project


def _add_tokens(ids: MutableSequence[int], tokens: Sequence[int]) -> None:
    """Add tokens to a field in parts, since protobuf makes an object of each of a part."""
    for begin in range(0, len(tokens), _PART_TOKENS):
        ids.extend(tokens[begin : begin + _PART_TOKENS])
