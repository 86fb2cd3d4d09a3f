"""The body of POST /v1/embeddings and the EmbedRequest it becomes."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from corral.inference.v1 import inference_service_pb2
from pydantic import Discriminator, Field, Tag

from openai_wire.requests.completions import Tokens
from openai_wire.requests.fields import (
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
