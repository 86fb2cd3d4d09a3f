"""The Embed RPC: validates and tokenizes inputs before anything is queued, and returns vectors."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.chat.tokenization import TextToTokenize
from inference_svc.engine.embedding_request import EmbeddingLimits, EmbeddingRequest
from inference_svc.model_pool.catalog import LoadedModel, ModelProcessor
from inference_svc.rpc.generation import Caller
from inference_svc.rpc.request_options import priority_of
from inference_svc.rpc.validation import check_bytes
from inference_svc.usage import Counts, RecordUsage
from svc_kit.errors import (
    ContextLengthExceeded,
    InvalidField,
    MissingField,
    ModelCannot,
    OutOfRange,
    TokenOutOfVocabulary,
    TooLong,
)

MAX_INPUTS = 2048
_FLOAT_BYTES = 4
_VECTOR_BYTES = 16  # the wire's own, a vector


@dataclass(frozen=True, slots=True)
class EmbeddingBounds:
    """Bounds in bytes: of one text, and of an answer."""

    text_bytes: int
    answer_bytes: int


class EmbeddingService:
    """Prepares embedding requests and waits for their vectors."""

    def __init__(self, bounds: EmbeddingBounds, count: RecordUsage) -> None:
        """`count` takes what a request used."""
        self._bounds = bounds
        self._count = count

    async def embed(
        self, request: pb.EmbedRequest, loaded: LoadedModel, caller: Caller
    ) -> pb.EmbedResponse:
        """Vectors in the order of the inputs. Raises the `DomainError` of what is wrong first."""
        model, limits = loaded.processor, limits_of(loaded)
        check_count("inputs", len(request.inputs))
        priority = priority_of(request.priority, caller.principal)
        size = _vector_size(request, limits)
        self._check_answer(len(request.inputs), size)
        tokens = await self._tokens(request.inputs, model)
        inputs = checked_inputs("inputs", tokens, limits)
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
        """The tokens of texts that are to become inputs, or parts of them, as they stand.

        Raises TooLong or InvalidField.
        """
        check_count("texts", len(texts))
        for index, text in enumerate(texts):
            check_bytes(f"texts[{index}]", text, self._bounds.text_bytes)
        request = [TextToTokenize(text, False, False) for text in texts]
        return list(map(len, await model.tokenizer.tokenize_each(request, field="texts")))

    def _check_answer(self, num_vectors: int, size: int) -> None:
        """An answer that gRPC would not carry must not be computed."""
        length = num_vectors * (size * _FLOAT_BYTES + _VECTOR_BYTES)
        if length > self._bounds.answer_bytes:
            raise TooLong(
                field="inputs", length=length, limit=self._bounds.answer_bytes, unit="bytes"
            )

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


def limits_of(loaded: LoadedModel) -> EmbeddingLimits:
    """What the model's embedding context takes. Raises `ModelCannot` where it has none."""
    limits, file = loaded.ready.embedding, loaded.processor.file
    if limits is None:
        raise ModelCannot(model=file.name, model_class=file.model_class.value, operation="embed")
    return limits


def check_count(field: str, count: int) -> None:
    """Raise where a list of inputs is empty or too long."""
    if not count:
        raise MissingField(field=field)
    if count > MAX_INPUTS:
        raise TooLong(field=field, length=count, limit=MAX_INPUTS)


def checked_inputs(
    field: str, inputs: Sequence[Sequence[int]], limits: EmbeddingLimits
) -> "tuple[array[int], ...]":
    """The inputs for the engine. Raises where one is empty, too long or not of the vocabulary."""
    for index, tokens in enumerate(inputs):
        name = f"{field}[{index}]"
        if not tokens:
            raise InvalidField(field=name, problem="the model has no tokens for it")
        if len(tokens) > limits.input_tokens:
            raise ContextLengthExceeded(
                field=name, prompt_tokens=len(tokens), context_tokens=limits.input_tokens
            )
        if min(tokens) < 0 or max(tokens) >= limits.vocabulary_size:
            bad = next(token for token in tokens if not 0 <= token < limits.vocabulary_size)
            raise TokenOutOfVocabulary(
                field=name, token=bad, vocabulary_size=limits.vocabulary_size
            )
    return tuple(array("i", tokens) for tokens in inputs)


def _vector_size(request: pb.EmbedRequest, limits: EmbeddingLimits) -> int:
    if not request.HasField("dimensions"):
        return limits.vector_size
    if not 1 <= request.dimensions <= limits.vector_size:
        raise OutOfRange(
            field="dimensions", value=request.dimensions, minimum=1, maximum=limits.vector_size
        )
    return request.dimensions
