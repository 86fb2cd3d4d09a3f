"""Bodies and objects of POST /v1/embeddings and /v1/rerank."""

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from corral.inference.v1 import inference_service_pb2
from pydantic import Discriminator, Field, Tag

from openai_wire.chat.completion_request import Tokens
from openai_wire.shared.fields import (
    BY_KIND,
    INT32_MAX,
    WireModel,
    array_kind_of,
    validated,
    without_neutral,
)
from svc_kit.errors import TooShort

MAX_INPUTS = 2048
EMBEDDING_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "add_special_tokens": (True,),
    "input_type": (),
    "messages": (),
    "truncate": (False, "none", "NONE"),
    "truncate_prompt_tokens": (),
}
"""Known extensions of other servers, with the values that ask for nothing."""
Text = Annotated[str, Field(min_length=1)]
Input = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS), Tag("~array of strings")]
    | Annotated[Tokens, Tag("~array of integers")]
    | Annotated[list[Tokens], Field(max_length=MAX_INPUTS), Tag("~array of arrays")],
    Discriminator(array_kind_of),
]


class EmbeddingBody(WireModel):
    """A request for the vectors of texts."""

    model: str = Field(description="The model's name, as GET /v1/models lists it.")
    input: Input = Field(
        description="A text, a list of texts, a list of token ids, or a list of such lists."
    )
    dimensions: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = Field(
        None, description="Cut the vectors to this size and scale them again."
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Numbers, or the bytes of little-endian 32-bit floats in Base64."
    )
    normalize: bool | None = Field(
        None, description="Scale the vectors to length 1. Default: true. (An extension.)"
    )
    user: str | None = Field(None, description="Not used.")


def parse_embedding(fields: Mapping[str, Any]) -> EmbeddingBody:
    """Checks a body. Raises DomainErrors with OpenAI's field names."""
    body = validated(EmbeddingBody, without_neutral(fields, EMBEDDING_UNSUPPORTED))
    if body.input == "":
        raise TooShort(field="input", length=0, minimum=1, unit="characters")
    return body


def embed_request(body: EmbeddingBody) -> inference_service_pb2.EmbedRequest:
    """The request that a body asks for."""
    request = inference_service_pb2.EmbedRequest(model=body.model)
    for given in inputs_of(body):
        if isinstance(given, str):
            request.inputs.add(text=given)
        else:
            request.inputs.add().token_ids.ids.extend(given)
    if body.dimensions is not None:
        request.dimensions = body.dimensions
    if body.normalize is not None:
        request.normalize = body.normalize
    return request


def inputs_of(body: EmbeddingBody) -> list[str | list[int]]:
    """The inputs, each a text or token ids."""
    given = body.input
    if isinstance(given, str) or isinstance(given[0], int):
        return [given]
    return list(given)


MAX_DOCUMENTS = 2048
RERANK_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "max_chunks_per_doc": (),
    "max_tokens_per_doc": (),
    "rank_fields": (["text"],),
    "raw_scores": (False,),
    "truncate": (False,),
    "truncate_prompt_tokens": (),
    "truncation": (False,),
}
"""Known extensions of other servers, with the values that ask for nothing."""


class DocumentObject(WireModel):
    """A document as an object."""

    text: str = Field(min_length=1, description="The document.")


Document = Annotated[
    Annotated[str, Field(min_length=1), Tag("~string")] | Annotated[DocumentObject, Tag("~object")],
    BY_KIND,
]


class RerankBody(WireModel):
    """A request to order documents by how well they answer a query."""

    model: str = Field(description="The model's name; it must have a rank head.")
    query: str = Field(min_length=1, description="What to compare with.")
    documents: list[Document] = Field(
        min_length=1, max_length=MAX_DOCUMENTS, description="Texts, or objects with a text."
    )
    top_n: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = Field(
        None, description="Send the best so many. Default: all."
    )
    return_documents: bool | None = Field(
        None, description="Send the documents with their scores. Default: false."
    )
    user: str | None = Field(None, description="Not used.")


def parse_rerank(fields: Mapping[str, Any]) -> RerankBody:
    """Checks a body. Raises DomainErrors with the body's field names."""
    return validated(RerankBody, without_neutral(fields, RERANK_UNSUPPORTED))


def documents_of(body: RerankBody) -> list[str]:
    """The documents as texts."""
    return [each if isinstance(each, str) else each.text for each in body.documents]


def rerank_request(body: RerankBody) -> inference_service_pb2.RerankRequest:
    """The request that a body asks for."""
    return inference_service_pb2.RerankRequest(
        model=body.model, query=body.query, documents=documents_of(body), top_n=body.top_n
    )


class EmbeddingList:
    """The answer of one Embed call; vectors as numbers, or as Base64 where it `packs` them."""

    def __init__(self, model: str, *, packs: bool) -> None:
        self._model = model
        self._packs = packs
        self._data: list[dict[str, object]] = []
        self._num_tokens = 0

    def add(self, message: inference_service_pb2.EmbedResponse, _call: int = 0) -> None:
        """Takes the answer of the call."""
        self._model = message.model
        self._num_tokens = message.prompt_tokens
        self._data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": packed(each.values) if self._packs else list(each.values),
            }
            for index, each in enumerate(message.embeddings)
        ]

    def as_object(self) -> dict[str, object]:
        """The whole answer."""
        return {
            "object": "list",
            "data": self._data,
            "model": self._model,
            "usage": {"prompt_tokens": self._num_tokens, "total_tokens": self._num_tokens},
        }


def packed(values: Sequence[float]) -> str:
    """Little-endian 32-bit floats in Base64, the default of SDKs."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode("ascii")


class RankedList:
    """The answer of one Rerank call; `documents` are sent along where they are given."""

    def __init__(self, answer_id: str, model: str, documents: Sequence[str] | None) -> None:
        self._id = answer_id
        self._model = model
        self._documents = documents
        self._results: list[dict[str, object]] = []
        self._num_tokens = 0

    def add(self, message: inference_service_pb2.RerankResponse, _call: int = 0) -> None:
        """Takes the answer of the call."""
        self._model = message.model
        self._num_tokens = message.prompt_tokens
        self._results = [self._result(each) for each in message.results]

    def _result(self, ranked: inference_service_pb2.RerankResult) -> dict[str, object]:
        result: dict[str, object] = {
            "index": ranked.index,
            "relevance_score": ranked.relevance,
            "score": ranked.score,
        }
        if self._documents is not None:
            result["document"] = {"text": self._documents[ranked.index]}
        return result

    def as_object(self) -> dict[str, object]:
        """The whole answer."""
        return {
            "id": self._id,
            "object": "list",
            "model": self._model,
            "results": self._results,
            "usage": {"prompt_tokens": self._num_tokens, "total_tokens": self._num_tokens},
        }
