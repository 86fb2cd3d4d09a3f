"""Vector stores for tests: callers of both services, and an inference service whose vectors say
which words a text has."""

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from corral.control.v1 import vector_store_file_service_pb2 as files_pb
from corral.control.v1 import vector_store_pb2
from corral.control.v1 import vector_store_service_pb2 as pb
from corral.control.v1.vector_store_file_service_pb2_grpc import VectorStoreFileServiceStub
from corral.control.v1.vector_store_service_pb2_grpc import VectorStoreServiceStub
from corral.inference.v1 import inference_service_pb2

from control_svc.inference.embeddings import EmbeddingModel, EmbeddingResult
from gateway.fake_inference import Context, FakeInference
from svc_kit.errors import DomainError
from svc_kit.rpc.client import translate_errors
from svc_kit.sandbox.jobs import JobRunner
from tests.support.batches import MODEL
from tests.support.control import Client, RunningControl, a_control, a_service_token
from tests.support.loopback_gateway import an_inference_service

if TYPE_CHECKING:  # stubs over an aio channel have names for type checkers only
    from corral.control.v1.vector_store_file_service_pb2_grpc import (
        VectorStoreFileServiceAsyncStub,
    )
    from corral.control.v1.vector_store_service_pb2_grpc import VectorStoreServiceAsyncStub

DIMENSIONS = 64
NO_STORE = "vs_" + "0" * 32

Value = str | float | bool


def state_of(thing: Any) -> str:
    """OpenAI's word for the state of a store, a file or a batch."""
    return str(type(thing).State.Name(thing.state)).removeprefix("STATE_").lower()


def values(**attributes: Value) -> dict[str, vector_store_pb2.AttributeValue]:
    """Attributes as messages."""
    return {key: value(each) for key, each in attributes.items()}


def value(given: Value) -> vector_store_pb2.AttributeValue:
    """One value as a message."""
    if isinstance(given, bool):
        return vector_store_pb2.AttributeValue(boolean=given)
    if isinstance(given, str):
        return vector_store_pb2.AttributeValue(string=given)
    return vector_store_pb2.AttributeValue(number=given)


class WordVectors(FakeInference):
    """An inference service whose tokens are words, and whose vectors say which there are."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        """Awaited by every call for vectors of files."""
        self.gate.set()
        self.arrived = asyncio.Event()
        """Set by every call for vectors."""
        self.most_calls: int | None = None
        """Later calls for vectors wait for ever."""
        self.num_calls = 0
        self.stuck = asyncio.Event()
        """Set once one does."""
        self.failures: list[DomainError] = []
        """Raised by the next calls for vectors, one each."""
        self.embedded: Counter[str] = Counter()
        self.dimensions = DIMENSIONS
        self.digest = "a" * 64
        """Of the model's file."""
        self.num_counts = 0
        """Calls that counted tokens."""
        self.priorities: list[str] = []

    async def CountTokens(
        self, request: inference_service_pb2.CountTokensRequest, context: Context
    ) -> inference_service_pb2.CountTokensResponse:
        """A token a word."""
        counts = [len(text.split()) for text in request.texts]
        self.num_counts += 1
        return inference_service_pb2.CountTokensResponse(text_tokens=counts)

    async def Embed(
        self, request: inference_service_pb2.EmbedRequest, context: Context
    ) -> inference_service_pb2.EmbedResponse:
        """A vector of the words of each text."""
        metadata = dict(context.invocation_metadata() or ())
        self.priorities.append(str(metadata.get("x-corral-priority", "")))
        self.arrived.set()
        self.num_calls += 1
        if self.most_calls is not None and self.num_calls > self.most_calls:
            self.stuck.set()
            await asyncio.Event().wait()
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        texts = [each.text for each in request.inputs]
        self.embedded.update(texts)
        return inference_service_pb2.EmbedResponse(
            embeddings=[
                inference_service_pb2.Embedding(values=word_vector(text, self.dimensions))
                for text in texts
            ],
            model=self._model(request.model).name,
            model_digest=self.digest if request.with_digest else "",
        )


def word_vector(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """A direction for each word; the vector is their sum, of length 1."""
    total = np.full(dimensions, 1e-6)
    for word in re.findall(r"\w+", text.casefold()):
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4])
        total += np.random.default_rng(seed).standard_normal(dimensions)
    return [float(each) for each in total / np.linalg.norm(total)]


class WordEmbedder:
    """The same vectors without a service."""

    async def model(self, project: str, name: str) -> EmbeddingModel:
        """Any model."""
        return EmbeddingModel(name, 496)

    async def count_tokens(self, project: str, model: str, texts: Sequence[str]) -> list[int]:
        """A token a word."""
        return [len(text.split()) for text in texts]

    async def embed(
        self, project: str, model: str, texts: Sequence[str], *, is_background: bool
    ) -> EmbeddingResult:
        """The vectors of texts."""
        return EmbeddingResult(
            np.array([word_vector(text) for text in texts], np.float32), "a" * 64
        )


@dataclass(frozen=True)
class VectorClient:
    """Both services as one project's caller sees them; failures are our errors."""

    client: Client

    @property
    def stores(self) -> "VectorStoreServiceAsyncStub":
        """VectorStoreService, bare."""
        return VectorStoreServiceStub(self.client.channel)

    @property
    def files(self) -> "VectorStoreFileServiceAsyncStub":
        """VectorStoreFileService, bare."""
        return VectorStoreFileServiceStub(self.client.channel)

    async def ask(self, method: str, **fields: Any) -> Any:
        """One call of any of the methods that answer once."""
        stub: Any = self.files if hasattr(self.files, method) else self.stores
        module: Any = files_pb if hasattr(files_pb, f"{method}Request") else pb
        request = getattr(module, f"{method}Request")(**fields)
        with translate_errors():
            return await getattr(stub, method)(request, metadata=self.client.metadata)

    async def create(self, **asked: Any) -> vector_store_pb2.VectorStore:
        """A store."""
        answer = await self.ask("CreateVectorStore", **asked)
        made: vector_store_pb2.VectorStore = answer.vector_store
        return made

    async def get(self, store_id: str) -> vector_store_pb2.VectorStore:
        """One store."""
        answer = await self.ask("GetVectorStore", vector_store_id=store_id)
        found: vector_store_pb2.VectorStore = answer.vector_store
        return found

    async def put(
        self, store_id: str, content: str | bytes, filename: str = "a.txt", **asked: Any
    ) -> str:
        """A new file, on its way into a store; its id."""
        raw = content.encode() if isinstance(content, str) else content
        file = await self.client.create(raw, filename=filename)
        await self.ask("CreateVectorStoreFile", vector_store_id=store_id, file_id=file.id, **asked)
        return file.id

    async def read(self, store_id: str) -> vector_store_pb2.VectorStore:
        """The store, once no file of it is in progress."""
        request = pb.WatchVectorStoreRequest(vector_store_id=store_id)
        last = vector_store_pb2.VectorStore()
        with translate_errors():
            call = self.stores.WatchVectorStore(request, metadata=self.client.metadata)
            async for answer in call:
                last = answer.vector_store
        return last

    async def library(self, texts: Mapping[str, str], **asked: Any) -> tuple[str, dict[str, str]]:
        """A store that has been read, and the ids of its files by their names."""
        store = await self.create(**asked)
        ids = {name: await self.put(store.id, text, name) for name, text in texts.items()}
        await self.read(store.id)
        return store.id, ids

    async def file(self, store_id: str, file_id: str) -> vector_store_pb2.VectorStoreFile:
        """One file in a store."""
        answer = await self.ask("GetVectorStoreFile", vector_store_id=store_id, file_id=file_id)
        found: vector_store_pb2.VectorStoreFile = answer.file
        return found

    async def search(self, store_id: str, *queries: str, **asked: Any) -> list[Any]:
        """What is found."""
        answer = await self.ask(
            "SearchVectorStore", vector_store_id=store_id, queries=queries, **asked
        )
        return list(answer.hits)

    async def found(self, store_id: str, *queries: str, **asked: Any) -> list[str]:
        """The names of the files that are found, best first."""
        return [hit.filename for hit in await self.search(store_id, *queries, **asked)]


@dataclass(frozen=True)
class RunningVectors:
    """A control service with a fake inference service behind it."""

    control: RunningControl
    fake: WordVectors

    @property
    def vectors(self) -> VectorClient:
        """The caller without a key."""
        return VectorClient(self.control.client)

    def of_project(self, project: str) -> VectorClient:
        """A caller of another project."""
        return VectorClient(self.control.of_project(project))


@asynccontextmanager
async def running_vectors(
    folder: Path,
    database_url: str | None = None,
    fake: WordVectors | None = None,
    sandbox: JobRunner | None = None,
    **settings: Any,
) -> AsyncIterator[RunningVectors]:
    """Both services; `settings` are those of control."""
    fake = fake or WordVectors()
    settings = {"embedding_model": MODEL, **settings}
    async with (
        an_inference_service(fake, service_token_file=a_service_token(folder)) as server,
        a_control(
            folder, database_url, sandbox, inference_target=str(server.address), **settings
        ) as control,
    ):
        yield RunningVectors(control, fake)


def paragraphs(words: Iterable[str], length: int = 40) -> str:
    """A text with a paragraph about each word."""
    return "\n\n".join(f"{word} " * length for word in words)
