"""The body of POST /v1/rerank, in the shape that Jina, Cohere and the local servers share, and the
RerankRequest it becomes."""

from collections.abc import Mapping
from typing import Annotated, Any

from corral.inference.v1 import inference_service_pb2
from pydantic import Field, Tag

from openai_wire.requests.fields import (
    BY_KIND,
    INT32_MAX,
    WireModel,
    validated,
    without_neutral,
)

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
