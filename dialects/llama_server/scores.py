"""Bodies and answers of vectors and scores: llama-server's /embedding, TEI's form of /rerank, and
vLLM's /score.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, NotRequired

from corral.inference.v1 import inference_service_pb2
from corral.inference.v1.inference_service_pb2 import EmbedRequest, RerankRequest
from pydantic import Discriminator, Field, Tag
from typing_extensions import TypeAliasType, TypedDict

from dialects.shared.fields import (
    BY_KIND,
    Tokens,
    WireModel,
    json_array_kind,
    split_inputs,
    validate,
)
from dialects.shared.parameters import Ignored, Policy, Refused
from svc_kit.errors import InvalidField, MissingField, OutOfRange, TooLong
from svc_kit.rpc.field_limits import limit

MAX_QUERIES: Final = 64
"""Different first texts of a request; each is a call of its own."""
_EUCLIDEAN: Final = 2
_NO_NORM: Final = -1
_NOT_TRUNCATED: Final = "texts are not truncated"
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[
    Annotated[Text, Tag("~string")]
    | Annotated[list[Text], limit(RerankRequest, "documents"), Tag("~array")],
    BY_KIND,
]
Content = Annotated[
    Annotated[Text, Tag("~string")]
    | Annotated[list[Text], limit(EmbedRequest, "inputs"), Tag("~array of strings")]
    | Annotated[Tokens, Tag("~array of integers")]
    | Annotated[list[Tokens], limit(EmbedRequest, "inputs"), Tag("~array of arrays")],
    Discriminator(json_array_kind),
]
EMBEDDING_PARAMS: Final = {"inputs": "content"}
TEI_PARAMS: Final = {"documents": "texts"}
SCORE_PARAMS: Final = {"query": "text_1", "documents": "text_2"}


class ContentEmbeddingBody(WireModel):
    """llama-server's request for embeddings."""

    route: ClassVar[str] = "/embedding"
    model: str | None = Field(None, description="Default: the server's first encoder.")
    content: Content | None = None
    input: Content | None = Field(None, description="Another name for content.")
    embd_normalize: int | None = Field(
        None, ge=_NO_NORM, le=_EUCLIDEAN, description="2: length 1 (default). -1: as computed."
    )

    @property
    def inputs(self) -> list[str | list[int]]:
        """The texts and lists of tokens. Raises MissingField."""
        content = self.input if self.content is None else self.content
        if content is None:
            raise MissingField(field="content")
        return split_inputs(content)


class TextRankBody(WireModel):
    """TEI's request to rank texts."""

    policy: ClassVar[Policy] = {
        "truncate": Refused(_NOT_TRUNCATED, (False,)),
        "truncation_direction": Ignored(_NOT_TRUNCATED),
    }

    model: str | None = Field(None, description="Default: the server's first reranker.")
    query: Text
    texts: Annotated[list[Text], limit(RerankRequest, "documents")]
    return_text: bool | None = None
    raw_scores: bool | None = Field(None, description="Scores before the logistic function.")


class ScoreBody(WireModel):
    """vLLM's request to score pairs: one text with many, or many with as many."""

    policy: ClassVar[Policy] = {
        "truncate_prompt_tokens": Refused(_NOT_TRUNCATED),
        "activation": Ignored("scores are probabilities", (True,)),
        "user": Ignored("it is a label of the caller's, and is not stored"),
        "priority": Ignored("the priority belongs to the API key"),
    }

    model: str | None = Field(None, description="Default: the server's first reranker.")
    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = Field(None, description="Another name for text_1.")
    documents: Texts | None = Field(None, description="Another name for text_2.")
    items: Texts | None = Field(None, description="Another name for text_2.")
    data_1: Texts | None = Field(None, description="Another name for text_1.")
    data_2: Texts | None = Field(None, description="Another name for text_2.")


def parse_embedding(fields: Mapping[str, Any]) -> ContentEmbeddingBody:
    """Validate a body. Raises DomainErrors."""
    return validate(ContentEmbeddingBody, fields)


def parse_text_rank(fields: Mapping[str, Any]) -> TextRankBody:
    """Validate a body. Raises DomainErrors."""
    return validate(TextRankBody, fields)


def parse_score(fields: Mapping[str, Any]) -> ScoreBody:
    """Validate a body. Raises DomainErrors."""
    return validate(ScoreBody, fields)


def embed_request(body: ContentEmbeddingBody) -> inference_service_pb2.EmbedRequest:
    """Convert a body. Raises DomainErrors."""
    norm = _EUCLIDEAN if body.embd_normalize is None else body.embd_normalize
    if norm not in (_NO_NORM, _EUCLIDEAN):
        raise OutOfRange(field="embd_normalize", value=norm, minimum=_NO_NORM, maximum=_EUCLIDEAN)
    request = inference_service_pb2.EmbedRequest(
        model=body.model or "", normalize=norm == _EUCLIDEAN
    )
    for each in body.inputs:
        if isinstance(each, str):
            request.inputs.add(text=each)
        else:
            request.inputs.add().token_ids.ids.extend(each)
    return request


class LlamaServerEmbedding(TypedDict):
    """The vectors of an input."""

    index: int
    embedding: list[list[float]]


class TextRank(TypedDict):
    """The score of a text, and the text if the request asks for it."""

    index: int
    score: float
    text: NotRequired[str]


class Score(TypedDict):
    """The score of a pair, from 0 to 1."""

    index: int
    object: Literal["score"]
    score: float


class ScoreUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int


class Scores(TypedDict):
    """vLLM's answer of /score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: ScoreUsage


LlamaServerEmbeddings = TypeAliasType("LlamaServerEmbeddings", list[LlamaServerEmbedding])
TextRanks = TypeAliasType("TextRanks", list[TextRank])


def embedding_list(reply: inference_service_pb2.EmbedResponse) -> list[LlamaServerEmbedding]:
    """llama-server's answer: a list of vectors for each input, here of one."""
    return [
        {"index": index, "embedding": [list(each.values)]}
        for index, each in enumerate(reply.embeddings)
    ]


def text_rank_request(body: TextRankBody) -> inference_service_pb2.RerankRequest:
    return inference_service_pb2.RerankRequest(
        model=body.model or "", query=body.query, documents=body.texts
    )


def text_ranks(body: TextRankBody, reply: inference_service_pb2.RerankResponse) -> list[TextRank]:
    """TEI's answer, best first."""
    ranks: list[TextRank] = []
    for each in reply.results:
        score = each.score if body.raw_scores else each.relevance
        ranks.append({"index": each.index, "score": score})
        if body.return_text:
            ranks[-1]["text"] = body.texts[each.index]
    return ranks


def score_pairs(body: ScoreBody) -> list[tuple[str, str]]:
    """The pairs of a body. Raises MissingField, or InvalidField if the numbers do not match."""
    first = _listed("text_1", body.text_1, body.queries, body.data_1)
    second = _listed("text_2", body.text_2, body.documents, body.items, body.data_2)
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        problem = f"it must have one text, or as many as 'text_2' ({len(second)})"
        raise InvalidField(field="text_1", problem=problem)
    return list(zip(first, second, strict=True))


def score_requests(
    model: str, pairs: Sequence[tuple[str, str]]
) -> list[tuple[list[int], inference_service_pb2.RerankRequest]]:
    """A request for each first text, with the positions of its pairs. Raises TooLong."""
    positions: dict[str, list[int]] = {}
    for index, (query, _) in enumerate(pairs):
        positions.setdefault(query, []).append(index)
    if len(positions) > MAX_QUERIES:
        length = len(positions)
        raise TooLong(field="text_1", length=length, limit=MAX_QUERIES, unit="different texts")
    return [
        (
            indexes,
            inference_service_pb2.RerankRequest(
                model=model, query=query, documents=[pairs[index][1] for index in indexes]
            ),
        )
        for query, indexes in positions.items()
    ]


def score_list(
    object_id: str,
    created: int,
    replies: Sequence[tuple[list[int], inference_service_pb2.RerankResponse]],
) -> Scores:
    """vLLM's answer: the scores in the order of the pairs."""
    scores = {
        indexes[result.index]: result.relevance
        for indexes, reply in replies
        for result in reply.results
    }
    tokens = sum(reply.prompt_tokens for _, reply in replies)
    return {
        "id": object_id,
        "object": "list",
        "created": created,
        "model": replies[0][1].model,
        "data": [
            {"index": index, "object": "score", "score": scores[index]} for index in sorted(scores)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }


def _listed(field: str, *names: str | list[str] | None) -> list[str]:
    texts = next((each for each in names if each is not None), None)
    if texts is None:
        raise MissingField(field=field)
    return [texts] if isinstance(texts, str) else texts
