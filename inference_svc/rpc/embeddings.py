"""The Embed RPC: validates and tokenizes inputs before anything is queued, and returns vectors."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.chat.tokenization import TextToTokenize
from inference_svc.engine.embedding_request import EmbeddingLimits, EmbeddingRequest
from inference_svc.model_pool.catalog import LoadedModel, ModelProcessor
from inference_svc.rpc.generation import Caller
from inference_svc.rpc.request_options import resolve_priority
from inference_svc.rpc.validation import check_bytes, check_tokens
from inference_svc.usage import Counts, RecordUsage
from svc_kit.errors import (
    ContextLengthExceeded,
    InvalidField,
    MissingField,
    ModelCannot,
    OutOfRange,
    TooLong,
)

MAX_INPUTS = 2048
_FLOAT_BYTES = 4
_VECTOR_BYTES = 16  # protobuf overhead per vector


@dataclass(frozen=True, slots=True)
class EmbeddingBounds:
    """Limits in bytes of one text and of a response."""

    text_bytes: int
    response_bytes: int


class EmbeddingService:
    """Prepares embedding requests and waits for their vectors."""

    def __init__(self, bounds: EmbeddingBounds, count: RecordUsage) -> None:
        """`count` records the usage of each request."""
        self._bounds = bounds
        self._count = count

    async def embed(
        self, request: pb.EmbedRequest, loaded: LoadedModel, caller: Caller
    ) -> pb.EmbedResponse:
        """Return the vectors in the order of the inputs. Raises a `DomainError`."""
        model, limits = loaded.processor, embedding_limits(loaded)
        check_count("inputs", len(request.inputs))
        priority = resolve_priority(request.priority, caller.principal)
        size = _vector_size(request, limits)
        self._check_response(len(request.inputs), size)
        tokens = await self._tokens(request.inputs, model)
        inputs = check_inputs("inputs", tokens, limits)
        vectors = await loaded.engine.embed(
            EmbeddingRequest(
                sequence_id=-1,
                model=model.name,
                inputs=inputs,
                project=caller.principal.project,
                dimensions=size,
                normalize=request.normalize if request.HasField("normalize") else True,
                priority=priority,
                deadline=caller.deadline,
                request_id=caller.request_id,
            )
        )
        prompt_tokens = sum(map(len, inputs))
        self._count(caller.principal.project, model.name, Counts(1, prompt_tokens))
        return pb.EmbedResponse(
            embeddings=[pb.Embedding(values=vector) for vector in vectors],
            prompt_tokens=prompt_tokens,
            model=model.name,
        )

    async def count_each(self, texts: Sequence[str], model: ModelProcessor) -> list[int]:
        """Count the tokens of each text, without special tokens. Raises `TooLong` or
        `InvalidField`."""
        check_count("texts", len(texts))
        for index, text in enumerate(texts):
            check_bytes(f"texts[{index}]", text, self._bounds.text_bytes)
        request = [TextToTokenize(text, False, False) for text in texts]
        return list(map(len, await model.tokenizer.tokenize_each(request, field="texts")))

    def _check_response(self, num_vectors: int, size: int) -> None:
        """Raise `TooLong` for a response that would exceed the gRPC message limit."""
        length = num_vectors * (size * _FLOAT_BYTES + _VECTOR_BYTES)
        limit = self._bounds.response_bytes
        if length > limit:
            raise TooLong(field="inputs", length=length, limit=limit, unit="bytes")

    async def _tokens(
        self, inputs: Sequence[pb.TextOrTokens], model: ModelProcessor
    ) -> list[Sequence[int]]:
        texts = []
        for index, each in enumerate(inputs):
            if not (each.text or each.token_ids.ids):
                raise MissingField(field=f"inputs[{index}]")
            if each.WhichOneof("input") == "text":
                check_bytes(f"inputs[{index}]", each.text, self._bounds.text_bytes)
                texts.append(TextToTokenize(each.text, True, False))
        tokenized = iter(await model.tokenizer.tokenize_each(texts, field="inputs"))
        return [
            next(tokenized) if each.WhichOneof("input") == "text" else each.token_ids.ids
            for each in inputs
        ]


def embedding_limits(loaded: LoadedModel) -> EmbeddingLimits:
    """Return the limits of the model's embedding context. Raises `ModelCannot` if it has none."""
    limits, file = loaded.ready.embedding, loaded.processor.file
    if limits is None:
        raise ModelCannot(model=file.name, model_class=file.model_class.value, operation="embed")
    return limits


def check_count(field: str, count: int) -> None:
    """Raise `MissingField` or `TooLong` if a list of inputs is empty or too long."""
    if not count:
        raise MissingField(field=field)
    if count > MAX_INPUTS:
        raise TooLong(field=field, length=count, limit=MAX_INPUTS)


def check_inputs(
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


def _vector_size(request: pb.EmbedRequest, limits: EmbeddingLimits) -> int:
    if not request.HasField("dimensions"):
        return limits.vector_size
    if not 1 <= request.dimensions <= limits.vector_size:
        raise OutOfRange(
            field="dimensions", value=request.dimensions, minimum=1, maximum=limits.vector_size
        )
    return request.dimensions
