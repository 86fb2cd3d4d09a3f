"""The Rerank RPC: scores pairs of a query and a document."""

import math

from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.engine.embedding_request import EmbeddingRequest
from inference_svc.model_pool.catalog import LoadedModel
from inference_svc.rpc.embeddings import (
    EmbeddingBounds,
    check_count,
    check_inputs,
    embedding_limits,
)
from inference_svc.rpc.generation import Caller
from inference_svc.rpc.validation import check_bytes
from inference_svc.usage import Counts, RecordUsage
from svc_kit.errors import MissingField, OutOfRange


class RerankService:
    """Prepares rerank requests and waits for their scores."""

    def __init__(self, bounds: EmbeddingBounds, count: RecordUsage) -> None:
        """`count` takes what a request used."""
        self._bounds = bounds
        self._count = count

    async def rerank(
        self, request: pb.RerankRequest, loaded: LoadedModel, caller: Caller
    ) -> pb.RerankResponse:
        """Return the documents by score, best first. Raises a `DomainError`."""
        model = loaded.processor
        self._check(request)
        pairs = await model.pair_tokenizer.pairs(request.query, request.documents)
        inputs = check_inputs("documents", pairs, embedding_limits(loaded))
        vectors = await loaded.engine.embed(
            EmbeddingRequest(
                sequence_id=-1,
                model=model.name,
                inputs=inputs,
                project=caller.principal.project,
                priority=int(caller.principal.priority),
                deadline=caller.deadline,
                request_id=caller.request_id,
            )
        )
        prompt_tokens = sum(map(len, inputs))
        self._count(caller.principal.project, model.name, Counts(1, prompt_tokens))
        results = [
            pb.RerankResult(
                index=index,
                score=score,
                relevance=score if model.file.gives_probabilities else logistic(score),
            )
            for index, score in enumerate(float(vector[0]) for vector in vectors)
        ]
        results.sort(key=lambda result: -result.score)
        return pb.RerankResponse(
            results=results[: request.top_n] if request.HasField("top_n") else results,
            prompt_tokens=prompt_tokens,
            model=model.name,
        )

    def _check(self, request: pb.RerankRequest) -> None:
        if not request.query:
            raise MissingField(field="query")
        check_bytes("query", request.query, self._bounds.text_bytes)
        check_count("documents", len(request.documents))
        for index, document in enumerate(request.documents):
            if not document:
                raise MissingField(field=f"documents[{index}]")
            check_bytes(f"documents[{index}]", document, self._bounds.text_bytes)
        if request.HasField("top_n") and request.top_n < 1:
            raise OutOfRange(field="top_n", value=request.top_n, minimum=1)


def logistic(score: float) -> float:
    """The logistic function of a raw score, without overflow."""
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    return math.exp(score) / (1 + math.exp(score))
