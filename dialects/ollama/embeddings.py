"""Request bodies and answers of /api/embed and /api/embeddings."""

import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from corral.inference.v1 import inference_service_pb2
from corral.inference.v1.inference_service_pb2 import EmbedRequest
from pydantic import Field, Tag
from typing_extensions import TypedDict

from dialects.ollama.model_body import TRUNCATED, ModelBody
from dialects.shared.body_routes import check_route
from dialects.shared.fields import BY_KIND, validate
from dialects.shared.parameters import Ignored, Policy
from svc_kit.rpc.field_limits import limit, limit_of

MAX_INPUTS = limit_of(EmbedRequest, "inputs").max_items
EMBED_PARAMS = {"inputs": "input"}
PROMPT_EMBED_PARAMS = {"inputs": "prompt", "inputs[0]": "prompt"}
_UNUSED: Policy = {
    "options": Ignored("texts are embedded in one way"),
    "keep_alive": Ignored("the operator decides which models stay loaded"),
}
Input = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[list[str], Field(max_length=MAX_INPUTS), Tag("~array")],
    BY_KIND,
]


class EmbedBody(ModelBody):
    policy: ClassVar[Policy] = _UNUSED

    input: Input | None = Field(None, description="A text or a list of texts.")
    truncate: bool | None = Field(
        None, description="Cut texts that are too long. Default: true; false refuses them."
    )
    dimensions: Annotated[int, limit(EmbedRequest, "dimensions"), TRUNCATED] | None = None

    @property
    def texts(self) -> list[str]:
        """The texts; none if the input is empty."""
        if isinstance(self.input, str):
            return [self.input] if self.input else []
        return self.input or []


class PromptEmbedBody(ModelBody):
    """The older request for the embedding of one text, which is not normalized."""

    policy: ClassVar[Policy] = _UNUSED

    prompt: str | None = None


def parse_embed(fields: Mapping[str, Any]) -> EmbedBody:
    """Validate a body. Raises DomainErrors."""
    check_route(fields, "/api/embed")
    return validate(EmbedBody, fields)


def parse_prompt_embed(fields: Mapping[str, Any]) -> PromptEmbedBody:
    """Validate a body. Raises DomainErrors."""
    return validate(PromptEmbedBody, fields)


def embed_request(body: EmbedBody | PromptEmbedBody) -> inference_service_pb2.EmbedRequest:
    """Convert a body. Raises MissingField without a model."""
    request = inference_service_pb2.EmbedRequest(model=body.model_name, truncate=True)
    if isinstance(body, PromptEmbedBody):
        request.inputs.add(text=body.prompt or "")
        request.normalize = False
        return request
    request.truncate = body.truncate is not False
    for text in body.texts:
        request.inputs.add(text=text)
    if body.dimensions is not None:
        request.dimensions = body.dimensions
    return request


class OllamaEmbeddings(TypedDict):
    """The vectors of all texts. Durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbedding(TypedDict):
    embedding: list[float]


class EmbedAnswer:
    """The answer of /api/embed. The clock of `total_duration` starts when this is made."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._started_ns = time.monotonic_ns()

    def as_object(self, reply: inference_service_pb2.EmbedResponse) -> OllamaEmbeddings:
        """The vectors with the number of tokens; none for an empty input."""
        return {
            "model": self._model,
            "embeddings": [list(each.values) for each in reply.embeddings],
            "total_duration": time.monotonic_ns() - self._started_ns,
            "load_duration": 0,
            "prompt_eval_count": reply.prompt_tokens,
        }


def prompt_embedding(reply: inference_service_pb2.EmbedResponse) -> OllamaEmbedding:
    return {"embedding": [value for each in reply.embeddings for value in each.values]}
