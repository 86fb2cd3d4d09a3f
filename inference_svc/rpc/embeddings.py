"""The RPCs Embed and Rerank: validates and tokenizes inputs before anything is queued, and returns
vectors, or scores of pairs of a query and a document.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.generation_pb2 import RateLimitStatus

from inference_svc.chat.tokenization import TextToTokenize
from inference_svc.engine.embedding_request import EmbeddingLimits, EmbeddingRequest, Embeddings
from inference_svc.limits.limiter import Admit, Need
from inference_svc.model_pool.catalog import LoadedModel, ModelProcessor, TextProcessor, with_tokens
from inference_svc.rpc.call import Caller
from inference_svc.usage import Counts, RecordUsage, UsageKey
from inference_svc.validation import check_bytes, check_range, check_tokens
from svc_kit.errors import (
    ContextLengthExceeded,
    FeatureUnsupported,
    InvalidField,
    MissingField,
    ModelCannot,
    TooLong,
)
from svc_kit.logs import add_call_fields

_FLOAT_BYTES = 4
_VECTOR_BYTES = 16  # protobuf overhead per vector


@dataclass(frozen=True, slots=True)
class EmbeddingBounds:
    """Limits in bytes of one text and of a response."""

    text_bytes: int
    response_bytes: int


class EmbeddingService:
    """Prepares embedding and rerank requests and waits for their vectors."""

    def __init__(self, bounds: EmbeddingBounds, count: RecordUsage, admit: Admit) -> None:
        """`count` records the usage of each request, which `admit` admits."""
        self._bounds = bounds
        self._count = count
        self._admit = admit

    async def embed(
        self, request: pb.EmbedRequest, loaded: LoadedModel, caller: Caller
    ) -> pb.EmbedResponse:
        """Return the vectors in the order of the inputs. Raises a `DomainError`."""
        limits = _limits(loaded)
        priority = caller.resolve_priority(request.priority)
        size = _vector_size(request, limits)
        self._check_response(len(request.inputs), size)
        normalize = request.normalize if request.HasField("normalize") else True
        features = loaded.ready.features
        if features is not None and not normalize:
            raise FeatureUnsupported(feature=f"'normalize' false with the engine {features.engine}")
        inputs: tuple[array[int], ...] = ()
        texts: tuple[str, ...] = ()
        if isinstance(loaded.opened, TextProcessor):
            texts = self._texts(request.inputs, loaded.opened)
        else:
            inputs = await self._inputs(request, loaded.opened, limits)
        found, statuses = await self._compute(
            inputs, loaded, caller, priority, texts=texts, dimensions=size, normalize=normalize
        )
        return pb.EmbedResponse(
            embeddings=[pb.Embedding(values=vector) for vector in found.vectors],
            prompt_tokens=found.num_tokens,
            is_estimated=found.is_estimated,
            model=loaded.opened.name,
            rate_limits=statuses,
        )

    async def rerank(
        self, request: pb.RerankRequest, loaded: LoadedModel, caller: Caller
    ) -> pb.RerankResponse:
        """Return the documents by score, best first. Raises a `DomainError`."""
        if (features := loaded.ready.features) is not None:
            raise FeatureUnsupported(feature=f"reranking with the engine {features.engine}")
        model = loaded.processor
        self._check_rerank(request)
        pairs = await model.pair_tokenizer.pairs(request.query, request.documents)
        inputs = _checked_inputs("documents", pairs, _limits(loaded))
        priority = int(caller.principal.priority)
        found, statuses = await self._compute(inputs, loaded, caller, priority)
        results = [
            pb.RerankResult(
                index=index,
                score=score,
                relevance=score if model.file.gives_probabilities else logistic(score),
            )
            for index, score in enumerate(float(vector[0]) for vector in found.vectors)
        ]
        results.sort(key=lambda result: -result.score)
        return pb.RerankResponse(
            results=results[: request.top_n] if request.HasField("top_n") else results,
            prompt_tokens=found.num_tokens,
            model=model.name,
            rate_limits=statuses,
        )

    async def _compute(
        self,
        inputs: "tuple[array[int], ...]",
        loaded: LoadedModel,
        caller: Caller,
        priority: int,
        *,
        texts: tuple[str, ...] = (),
        dimensions: int | None = None,
        normalize: bool = False,
    ) -> tuple[Embeddings, list[RateLimitStatus]]:
        """Return the vectors of the inputs, whose tokens are counted, and the state of the
        limits."""
        request = EmbeddingRequest(
            sequence_id=-1,
            model=loaded.opened.name,
            inputs=inputs,
            texts=texts,
            project=caller.principal.project,
            dimensions=dimensions,
            normalize=normalize,
            priority=priority,
            deadline=caller.deadline,
            request_id=caller.request_id,
        )
        key = UsageKey(request.project, caller.principal.key_id, request.model)
        with await self._admit(key, Need(request.num_tokens)) as admission:
            statuses = admission.statuses()
            found = await loaded.engine.embed(request)
            counts = Counts(1, found.num_tokens)
            admission.settle(counts)
        self._count(key, counts)
        add_call_fields(model=request.model, prompt_tokens=found.num_tokens)
        return found, statuses

    async def count_each(self, texts: Sequence[str], model: ModelProcessor) -> list[int]:
        """Count the tokens of each text, without special tokens. Raises `TooLong` or
        `InvalidField`."""
        for index, text in enumerate(texts):
            check_bytes(f"texts[{index}]", text, self._bounds.text_bytes)
        request = [TextToTokenize(text) for text in texts]
        return list(map(len, await model.tokenizer.tokenize_each(request, field="texts")))

    def _check_response(self, num_vectors: int, size: int) -> None:
        """Raise `TooLong` for a response that would exceed the gRPC message limit."""
        length = num_vectors * (size * _FLOAT_BYTES + _VECTOR_BYTES)
        limit = self._bounds.response_bytes
        if length > limit:
            raise TooLong(field="inputs", length=length, limit=limit, unit="bytes")

    async def _inputs(
        self, request: pb.EmbedRequest, model: ModelProcessor, limits: EmbeddingLimits
    ) -> "tuple[array[int], ...]":
        tokens = await self._tokens(request.inputs, model)
        if request.truncate:
            tokens = [_truncated(each, limits.input_tokens, model) for each in tokens]
        return _checked_inputs("inputs", tokens, limits)

    def _texts(
        self, inputs: Sequence[pb.TextOrTokens], processor: TextProcessor
    ) -> tuple[str, ...]:
        """The inputs for an engine in text mode, which cuts or refuses what is too long for it."""
        for index, each in enumerate(inputs):
            self._check_input(index, each)
            if each.WhichOneof("input") != "text":
                with_tokens(processor)
        return tuple(each.text for each in inputs)

    def _check_input(self, index: int, given: pb.TextOrTokens) -> None:
        if not (given.text or given.token_ids.ids):
            raise MissingField(field=f"inputs[{index}]")
        check_bytes(f"inputs[{index}]", given.text, self._bounds.text_bytes)

    async def _tokens(
        self, inputs: Sequence[pb.TextOrTokens], model: ModelProcessor
    ) -> list[Sequence[int]]:
        texts = []
        for index, each in enumerate(inputs):
            self._check_input(index, each)
            if each.WhichOneof("input") == "text":
                texts.append(TextToTokenize(each.text, add_special=True))
        tokenized = iter(await model.tokenizer.tokenize_each(texts, field="inputs"))
        return [
            next(tokenized) if each.WhichOneof("input") == "text" else each.token_ids.ids
            for each in inputs
        ]

    def _check_rerank(self, request: pb.RerankRequest) -> None:
        check_bytes("query", request.query, self._bounds.text_bytes)
        for index, document in enumerate(request.documents):
            check_bytes(f"documents[{index}]", document, self._bounds.text_bytes)


def _limits(loaded: LoadedModel) -> EmbeddingLimits:
    """Return the limits of the model's embedding context. Raises `ModelCannot`, or for an upstream
    `FeatureUnsupported`, if it has none."""
    limits = loaded.ready.embedding
    if limits is None and (features := loaded.ready.features) is not None:
        raise FeatureUnsupported(feature=f"embeddings with the engine {features.engine}")
    if limits is None:
        file = loaded.processor.file
        raise ModelCannot(model=file.name, model_class=file.model_class.value, operation="embed")
    return limits


def _checked_inputs(
    field: str, inputs: Sequence[Sequence[int]], limits: EmbeddingLimits
) -> "tuple[array[int], ...]":
    """Validate inputs and convert them for the engine. Raises a `DomainError` if one is empty, too
    long or has tokens outside the vocabulary."""
    for index, tokens in enumerate(inputs):
        name = f"{field}[{index}]"
        if not tokens:
            raise InvalidField(field=name, problem="it has no tokens in the model's vocabulary")
        if len(tokens) > limits.input_tokens:
            raise ContextLengthExceeded(
                field=name, prompt_tokens=len(tokens), context_tokens=limits.input_tokens
            )
        check_tokens(name, tokens, limits.vocabulary_size)
    return tuple(array("i", tokens) for tokens in inputs)


def _truncated(tokens: Sequence[int], limit: int, model: ModelProcessor) -> Sequence[int]:
    """The first tokens, with the last one if it ends a text."""
    if len(tokens) <= limit:
        return tokens
    ends = {*model.vocabulary.end_tokens, model.vocabulary.pair_separator}
    return [*tokens[: limit - 1], tokens[-1]] if tokens[-1] in ends else tokens[:limit]


def _vector_size(request: pb.EmbedRequest, limits: EmbeddingLimits) -> int:
    if not request.HasField("dimensions"):
        return limits.vector_size
    check_range("dimensions", request.dimensions, 1, limits.vector_size)
    return request.dimensions


def logistic(score: float) -> float:
    """The logistic function of a raw score, without overflow."""
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    return math.exp(score) / (1 + math.exp(score))
