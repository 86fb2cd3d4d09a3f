"""Embed and Rerank of models that engines of others serve: what is counted and what is refused."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.engine.embedding_request import EmbeddingLimits, EmbeddingRequest, Embeddings
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine_client.features import Features
from inference_svc.limits.limiter import Need
from inference_svc.model_pool.catalog import LoadedModel, TextProcessor
from inference_svc.rpc.call import Caller
from inference_svc.rpc.embeddings import EmbeddingBounds, EmbeddingService
from inference_svc.usage import Counts, UsageKey
from svc_kit.auth.principal import Principal
from svc_kit.errors import FeatureUnsupported, MissingField, TooLong

TOLD = 13
FEATURES = Features("openai (text mode)", frozenset(), generates=False, vector_size=2)
LIMITS = EmbeddingLimits(0, 0, 4, 0, 2, 0)


class Ledger:
    """The limits and the usage of the requests, and the requests themselves."""

    def __init__(self) -> None:
        self.needs: list[int] = []
        self.settled: list[Counts] = []
        self.counted: list[Counts] = []
        self.requests: list[EmbeddingRequest] = []
        self.is_estimated = False

    async def admit(self, key: UsageKey, need: Need) -> "Ledger":
        self.needs.append(need.prompt_tokens)
        return self

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def statuses(self) -> list[Any]:
        return []

    def settle(self, counts: Counts) -> None:
        self.settled.append(counts)

    def count(self, key: UsageKey, counts: Counts) -> None:
        self.counted.append(counts)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """As the engine does, which counts other tokens than were estimated."""
        self.requests.append(request)
        vectors = [np.ones(2, np.float32) for _ in request.texts]
        return Embeddings(vectors, TOLD, self.is_estimated)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def service(ledger: Ledger) -> EmbeddingService:
    return EmbeddingService(EmbeddingBounds(100, 1000), ledger.count, cast(Any, ledger.admit))


def loaded(ledger: Ledger) -> LoadedModel:
    engine = SimpleNamespace(
        embed=ledger.embed, ready=SimpleNamespace(features=FEATURES, embedding=LIMITS)
    )
    return LoadedModel(TextProcessor("vec", Sampling()), cast(Any, engine))


def texts(*given: str, **fields: Any) -> pb.EmbedRequest:
    return pb.EmbedRequest(inputs=[pb.TextOrTokens(text=each) for each in given], **fields)


CALLER = Caller(Principal(project="p", scopes=frozenset(), key_id="k"), "r", None)


@pytest.mark.parametrize("is_estimated", [False, True])
async def test_what_the_engine_counted_is_counted(ledger: Ledger, is_estimated: bool) -> None:
    """The limits reserve an estimate, and settle by what was told, or by the estimate."""
    ledger.is_estimated = is_estimated
    request = texts("one", "a text of 20 bytes..", truncate=True)
    answer = await service(ledger).embed(request, loaded(ledger), CALLER)

    assert ledger.needs == [7]
    assert ledger.settled == ledger.counted == [Counts(1, TOLD)]
    assert (answer.prompt_tokens, answer.is_estimated) == (TOLD, is_estimated)
    assert answer.model == "vec"
    assert ledger.requests[0].texts == ("one", "a text of 20 bytes..")
    assert ledger.requests[0].normalize


@pytest.mark.parametrize(
    ("request_", "error", "problem"),
    [
        (texts("a", normalize=False), FeatureUnsupported, "'normalize' false with the engine"),
        (texts("a", ""), MissingField, r"inputs\[1\]"),
        (texts("a" * 101), TooLong, r"inputs\[0\]"),
        (
            pb.EmbedRequest(inputs=[pb.TextOrTokens(token_ids=pb.TokenIds(ids=[1]))]),
            FeatureUnsupported,
            "token ids with the model 'vec'",
        ),
    ],
)
async def test_what_the_engine_would_not_get_is_refused_before_it_is_asked(
    ledger: Ledger, request_: pb.EmbedRequest, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        await service(ledger).embed(request_, loaded(ledger), CALLER)
    assert ledger.needs == []


async def test_no_engine_of_others_ranks(ledger: Ledger) -> None:
    """Not even one that would score: its scores are of another kind."""
    request = pb.RerankRequest(query="a", documents=["b"])
    with pytest.raises(FeatureUnsupported, match="reranking with the engine openai"):
        await service(ledger).rerank(request, loaded(ledger), CALLER)
    assert ledger.needs == []
