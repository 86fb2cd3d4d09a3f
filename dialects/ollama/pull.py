"""Pulls of models (/api/pull): the source that a name means, and the progress in Ollama's lines."""

import hashlib
import re
from collections.abc import Sequence
from typing import Final, Literal, NotRequired

import orjson
from corral.inference.v1 import model_pb2
from corral.inference.v1.engine_service_pb2 import AddModelRequest, WatchModelsResponse
from typing_extensions import TypeAliasType, TypedDict

from dialects.ollama.errors import OllamaError, error_body
from dialects.ollama.model_body import NamedModelBody
from svc_kit.errors import DomainError, InvalidField
from svc_kit.logs import hide_queries

_HUB: Final = re.compile(
    r"(?:https://)?(?P<name>(?:hf\.co|huggingface\.co)/(?P<repository>[\w.-]+/[\w.-]+)"
    r"(?P<quantization>:[\w.-]+)?)",
    re.ASCII,
)
_SOURCES: Final = ("hf:", "https://", "http://", "/")
_MAX_NAME_CHARACTERS: Final = 256
"""Of an alias; the query of a URL comes on top."""
PULL_PARAMS: Final = {"source": "model", "name": "model", "aliases": "model"}
"""The fields of AddModelRequest that the name of a pull becomes."""


class OllamaPullChunk(TypedDict):
    """The state of a download. Sizes are in bytes."""

    status: str
    digest: NotRequired[str]
    total: NotRequired[int]
    completed: NotRequired[int]


class OllamaPull(TypedDict):
    """The answer to a pull without a stream."""

    status: Literal["success"]


OllamaPullEvent = TypeAliasType("OllamaPullEvent", OllamaPullChunk | OllamaError)
_BEGIN: Final[OllamaPullChunk] = {"status": "pulling manifest"}
SUCCESS: Final[OllamaPull] = {"status": "success"}


def add_request(body: NamedModelBody) -> AddModelRequest:
    """The request that adds the model of a pull, so that it has the requested name.

    Raises `InvalidField` for a name that is too long, or is one of Ollama's registry, which this
    server does not use.
    """
    name = body.model_name
    if len(name.partition("?")[0]) > _MAX_NAME_CHARACTERS:
        problem = f"at most {_MAX_NAME_CHARACTERS} characters are allowed before a URL's query"
        raise InvalidField(field="model", problem=problem)
    if hub := _HUB.fullmatch(name):
        source = f"hf:{hub['repository']}{hub['quantization'] or ''}"
        return AddModelRequest(source=source, name=hub["name"])
    if name.lower().startswith(_SOURCES):
        return AddModelRequest(source=name, aliases=[hide_queries(name)])
    problem = (
        f"'{name}' is not there, and this server does not use Ollama's registry; "
        "write hf.co/OWNER/REPOSITORY:QUANTIZATION"
    )
    raise InvalidField(field="model", problem=problem)


class PullProgress:
    """The states of a model that is downloaded, as lines (`frames`) or as the last of them."""

    def __init__(self) -> None:
        self._last: OllamaPullChunk | None = None

    def frames(self, response: WatchModelsResponse, _call: int = 0) -> Sequence[bytes]:
        """The lines of one state; none if nothing has changed for the client."""
        lines = [_progress(response.model)]
        if self._last is None:
            lines = [_BEGIN, *lines]
        new = [line for line in lines if line and line != self._last]
        self._last = new[-1] if new else self._last
        return [orjson.dumps(line) + b"\n" for line in new]

    def final_frames(self) -> Sequence[bytes]:
        """The last line."""
        return (orjson.dumps(SUCCESS) + b"\n",)

    def failure(self, error: DomainError) -> bytes:
        """The last line of a pull that failed."""
        return orjson.dumps(error_body(error)) + b"\n"

    def add(self, _response: WatchModelsResponse, _call: int = 0) -> None:
        """Nothing: the object has only the end."""

    def as_object(self) -> OllamaPull:
        """The answer without a stream."""
        return SUCCESS


def _progress(model: model_pb2.Model) -> OllamaPullChunk | None:
    """The line of a state. Clients show a bar for each `digest`, of which they cut twelve digits
    out; if that of the file is not known, it is one of its source and name."""
    download = model.download
    if model.state == model_pb2.Model.STATE_VERIFYING:
        return {"status": "verifying sha256 digest"}
    if not download.file:
        return None
    named = hashlib.sha256(f"{model.source} {download.file}".encode()).hexdigest()
    return {
        "status": f"pulling {download.sha256[:12] or download.file}",
        "digest": f"sha256:{download.sha256 or named}",
        "total": download.total_bytes,
        "completed": download.completed_bytes,
    }
