"""Request bodies and response objects of POST /v1/embeddings and /v1/rerank."""

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from corral.inference.v1 import inference_service_pb2
from corral.inference.v1.inference_service_pb2 import EmbedRequest, RerankRequest
from pydantic import Discriminator, Field, Tag
from typing_extensions import TypedDict

from dialects.openai.chat.policy import LABELS
from dialects.shared.fields import (
    BY_KIND,
    Tokens,
    WireModel,
    json_array_kind,
    split_inputs,
    validate,
)
from dialects.shared.parameters import Policy, Refused
from svc_kit.errors import TooShort
from svc_kit.rpc.field_limits import limit

Truncate = Annotated[
    Annotated[bool, Tag("~other")]
    | Annotated[Literal["end", "END", "none", "NONE"], Tag("~string")],
    BY_KIND,
]
_NOT_TRUNCATED = "texts are not truncated"
Text = Annotated[str, Field(min_length=1)]
Input = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[list[Text], limit(EmbedRequest, "inputs"), Tag("~array of strings")]
    | Annotated[Tokens, Tag("~array of integers")]
    | Annotated[list[Tokens], limit(EmbedRequest, "inputs"), Tag("~array of arrays")],
    Discriminator(json_array_kind),
]


class EmbeddingBody(WireModel):
    route: ClassVar[str] = "/v1/embeddings"
    policy: ClassVar[Policy] = {
        **LABELS,
        "add_special_tokens": Refused("texts are tokenized as the model requires", (True,)),
        "input_type": Refused("put the model's instruction before the text"),
        "messages": Refused("use 'input'"),
    }

    model: str = Field(
        description="The model's name, as GET /v1/models lists it. Empty: the first that embeds."
    )
    input: Input = Field(
        description="A text, a list of texts, a list of token ids, or a list of such lists."
    )
    dimensions: Annotated[int, limit(EmbedRequest, "dimensions")] | None = Field(
        None, description="Truncate the vectors to this size and normalize them again."
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Numbers, or base64 of the bytes of little-endian 32-bit floats."
    )
    normalize: bool | None = Field(
        None, description="Scale the vectors to length 1. Default: true. Extension of Corral."
    )
    truncate: Truncate | None = Field(
        None, description="true, or END: cut texts that are too long, instead of refusing them."
    )
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=-1)] | None = Field(
        None, description="-1: as `truncate`. Other limits than the model's are not supported."
    )


def parse_embedding(fields: Mapping[str, Any]) -> EmbeddingBody:
    """Validate a body. Raises DomainErrors with OpenAI's field names."""
    body = validate(EmbeddingBody, fields)
    if body.input == "":
        raise TooShort(field="input", length=0, minimum=1, unit="characters")
    return body


def embed_request(body: EmbeddingBody) -> inference_service_pb2.EmbedRequest:
    request = inference_service_pb2.EmbedRequest(
        model=body.model,
        dimensions=body.dimensions,
        normalize=body.normalize,
        truncate=body.truncate in (True, "end", "END") or body.truncate_prompt_tokens is not None,
    )
    for item in split_inputs(body.input):
        if isinstance(item, str):
            request.inputs.add(text=item)
        else:
            request.inputs.add().token_ids.ids.extend(item)
    return request


class DocumentObject(WireModel):
    """A document in the form of an object."""

    text: str = Field(min_length=1, description="The document.")


Document = Annotated[
    Annotated[str, Field(min_length=1), Tag("~string")] | Annotated[DocumentObject, Tag("~object")],
    BY_KIND,
]


class RerankBody(WireModel):
    """A request to order documents by relevance to a query."""

    policy: ClassVar[Policy] = {
        **LABELS,
        "max_chunks_per_doc": Refused(_NOT_TRUNCATED),
        "max_tokens_per_doc": Refused(_NOT_TRUNCATED),
        "rank_fields": Refused("documents have one text", (["text"],)),
        "raw_scores": Refused("'score' is the raw score", (False,)),
        "truncate": Refused(_NOT_TRUNCATED, (False,)),
        "truncate_prompt_tokens": Refused(_NOT_TRUNCATED),
        "truncation": Refused(_NOT_TRUNCATED, (False,)),
    }

    model: str = Field(description="The model's name. Empty: the first reranker.")
    query: str = Field(min_length=1, description="The text to compare the documents with.")
    documents: Annotated[list[Document], limit(RerankRequest, "documents")] = Field(
        description="Texts, or objects with a text."
    )
    top_n: Annotated[int, limit(RerankRequest, "top_n")] | None = Field(
        None, description="How many of the best documents to return. Default: all."
    )
    return_documents: bool | None = Field(
        None, description="Return the documents with their scores. Default: false."
    )


def parse_rerank(fields: Mapping[str, Any]) -> RerankBody:
    """Validate a body. Raises DomainErrors with the body's field names."""
    return validate(RerankBody, fields)


def document_texts(body: RerankBody) -> list[str]:
    return [each if isinstance(each, str) else each.text for each in body.documents]


def rerank_request(body: RerankBody) -> inference_service_pb2.RerankRequest:
    return inference_service_pb2.RerankRequest(
        model=body.model, query=body.query, documents=document_texts(body), top_n=body.top_n
    )


class Embedding(TypedDict):
    """The vector of an input: numbers, or base64 of little-endian 32-bit floats."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class InputUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    """The vectors of all inputs, in their order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: InputUsage


def embedding_list(
    body: EmbeddingBody, reply: inference_service_pb2.EmbedResponse
) -> EmbeddingList:
    """The response of POST /v1/embeddings."""
    is_text = body.encoding_format == "base64"
    encode: Callable[[Sequence[float]], list[float] | str] = encode_floats if is_text else list
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": encode(each.values)}
            for index, each in enumerate(reply.embeddings)
        ],
        "model": reply.model,
        "usage": {"prompt_tokens": reply.prompt_tokens, "total_tokens": reply.prompt_tokens},
    }


def encode_floats(values: Sequence[float]) -> str:
    """Encode numbers as base64 of little-endian 32-bit floats, the default of OpenAI's SDKs."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode("ascii")


class RankedText(TypedDict):
    """A document."""

    text: str


class RankedDocument(TypedDict):
    """The relevance of a document, from 0 to 1, and its raw score."""

    index: int
    relevance_score: float
    score: float
    document: NotRequired[RankedText]


class RerankResult(TypedDict):
    """Documents, best first."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: InputUsage


def ranked_list(
    object_id: str, body: RerankBody, reply: inference_service_pb2.RerankResponse
) -> RerankResult:
    """The response of POST /v1/rerank. It has the documents if the body asks for them."""
    results: list[RankedDocument] = [
        {"index": each.index, "relevance_score": each.relevance, "score": each.score}
        for each in reply.results
    ]
    if body.return_documents:
        documents = document_texts(body)
        for result in results:
            result["document"] = {"text": documents[result["index"]]}
    return {
        "id": object_id,
        "object": "list",
        "model": reply.model,
        "results": results,
        "usage": {"prompt_tokens": reply.prompt_tokens, "total_tokens": reply.prompt_tokens},
    }
