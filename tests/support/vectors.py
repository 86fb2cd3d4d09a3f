"""Vector stores for tests: a client of both services, and an inference service whose embeddings
depend on the words of a text."""

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from corral.control.v1 import vector_store_file_service_pb2 as files_pb
from corral.control.v1 import vector_store_pb2
from corral.control.v1 import vector_store_service_pb2 as pb
from corral.control.v1.vector_store_file_service_pb2_grpc import VectorStoreFileServiceStub
from corral.control.v1.vector_store_service_pb2_grpc import VectorStoreServiceStub
from corral.inference.v1 import inference_service_pb2

from control_svc.inference.embeddings import EmbeddingModel, EmbeddingResult
from svc_kit.errors import DomainError
from svc_kit.rpc.client import translate_errors
from svc_kit.sandbox.jobs import JobRunner
from tests.support.batches import MODEL
from tests.support.control import Client, RunningControl, run_control, write_service_token
from tests.support.fake_inference import Context, FakeInference
from tests.support.loopback_gateway import run_inference_service

DIMENSIONS = 64
NO_STORE = "vs_" + "0" * 32

Value = str | float | bool


def attributes(**values: Value) -> dict[str, vector_store_pb2.AttributeValue]:
    return {key: attribute_value(value) for key, value in values.items()}


def attribute_value(value: Value) -> vector_store_pb2.AttributeValue:
    if isinstance(value, bool):
        return vector_store_pb2.AttributeValue(boolean=value)
    if isinstance(value, str):
        return vector_store_pb2.AttributeValue(string=value)
    return vector_store_pb2.AttributeValue(number=value)


class WordInference(FakeInference):
    """An inference service whose tokens are words, and whose embeddings are sums over words."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        """Awaited by every Embed call with `held` in a text."""
        self.gate.set()
        self.held = ""
        self.arrived = asyncio.Event()
        """Set by every Embed call."""
        self.max_calls: int | None = None
        """Further Embed calls block."""
        self.num_calls = 0
        self.blocked = asyncio.Event()
        """Set once an Embed call blocks."""
        self.failures: list[DomainError] = []
        """Raised by the next Embed calls, one each."""
        self.embedded: Counter[str] = Counter()
        self.dimensions = DIMENSIONS
        self.digest = "a" * 64
        """Digest of the model's file."""
        self.num_counts = 0
        """Number of CountTokens calls."""
        self.priorities: list[str] = []

    async def CountTokens(
        self, request: inference_service_pb2.CountTokensRequest, context: Context
    ) -> inference_service_pb2.CountTokensResponse:
        counts = [len(text.split()) for text in request.texts]
        self.num_counts += 1
        return inference_service_pb2.CountTokensResponse(text_tokens=counts)

    async def Embed(
        self, request: inference_service_pb2.EmbedRequest, context: Context
    ) -> inference_service_pb2.EmbedResponse:
        """Embed each text with `word_vector`."""
        metadata = dict(context.invocation_metadata() or ())
        self.priorities.append(str(metadata.get("x-corral-priority", "")))
        self.arrived.set()
        self.num_calls += 1
        if self.max_calls is not None and self.num_calls > self.max_calls:
            self.blocked.set()
            await asyncio.Event().wait()
        if any(self.held in item.text for item in request.inputs):
            await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        texts = [item.text for item in request.inputs]
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
    """The normalized sum of a pseudorandom vector per word."""
    total = np.full(dimensions, 1e-6)
    for word in re.findall(r"\w+", text.casefold()):
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4])
        total += np.random.default_rng(seed).standard_normal(dimensions)
    return [float(value) for value in total / np.linalg.norm(total)]


class WordEmbedder:
    """An Embedder with the same embeddings and no service."""

    async def model(self, project: str, name: str) -> EmbeddingModel:
        return EmbeddingModel(name, 496)

    async def count_tokens(
        self, project: str, model: EmbeddingModel, texts: Sequence[str]
    ) -> list[int]:
        return [len(text.split()) for text in texts]

    async def embed(
        self, project: str, model: str, texts: Sequence[str], *, is_background: bool
    ) -> EmbeddingResult:
        return EmbeddingResult(
            np.array([word_vector(text) for text in texts], np.float32), "a" * 64
        )


class VectorClient:
    """A client of both services for one project. Raises DomainErrors."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.stores = VectorStoreServiceStub(client.channel)
        self.files = VectorStoreFileServiceStub(client.channel)

    async def call(self, method: str, **fields: Any) -> Any:
        """Call a unary method of either service."""
        stub: Any = self.files if hasattr(self.files, method) else self.stores
        module: Any = files_pb if hasattr(files_pb, f"{method}Request") else pb
        request = getattr(module, f"{method}Request")(**fields)
        return await self.client.call(getattr(stub, method), request)

    async def create(self, **fields: Any) -> vector_store_pb2.VectorStore:
        response: pb.CreateVectorStoreResponse = await self.call("CreateVectorStore", **fields)
        return response.vector_store

    async def get(self, store_id: str) -> vector_store_pb2.VectorStore:
        response: pb.GetVectorStoreResponse
        response = await self.call("GetVectorStore", vector_store_id=store_id)
        return response.vector_store

    async def add_file(
        self, store_id: str, content: str | bytes, filename: str = "a.txt", **fields: Any
    ) -> str:
        """Upload a file and add it to a store. Returns its id."""
        raw = content.encode() if isinstance(content, str) else content
        file = await self.client.create(raw, filename=filename)
        await self.call(
            "CreateVectorStoreFile", vector_store_id=store_id, file_id=file.id, **fields
        )
        return file.id

    async def wait_for_files(self, store_id: str) -> vector_store_pb2.VectorStore:
        """Wait until no file of a store is in progress."""
        request = pb.WatchVectorStoreRequest(vector_store_id=store_id)
        last = vector_store_pb2.VectorStore()
        with translate_errors():
            call = self.stores.WatchVectorStore(request, metadata=self.client.metadata)
            async for response in call:
                last = response.vector_store
        return last

    async def create_with_files(
        self, texts: Mapping[str, str], **fields: Any
    ) -> tuple[str, dict[str, str]]:
        """Create a store with completed files. Returns its id, and file ids by filename."""
        store = await self.create(**fields)
        ids = {name: await self.add_file(store.id, text, name) for name, text in texts.items()}
        await self.wait_for_files(store.id)
        return store.id, ids

    async def get_file(self, store_id: str, file_id: str) -> vector_store_pb2.VectorStoreFile:
        response: files_pb.GetVectorStoreFileResponse
        response = await self.call("GetVectorStoreFile", vector_store_id=store_id, file_id=file_id)
        return response.file

    async def search(self, store_id: str, *queries: str, **fields: Any) -> list[Any]:
        """Search a store. Returns the hits."""
        response = await self.call(
            "SearchVectorStore", vector_store_id=store_id, queries=queries, **fields
        )
        return list(response.hits)

    async def search_names(self, store_id: str, *queries: str, **fields: Any) -> list[str]:
        """Search a store. Returns the filenames of the hits."""
        return [hit.filename for hit in await self.search(store_id, *queries, **fields)]


@dataclass(frozen=True)
class RunningVectors:
    control: RunningControl
    fake: WordInference

    @property
    def vectors(self) -> VectorClient:
        return VectorClient(self.control.client)


@asynccontextmanager
async def run_vectors(
    folder: Path,
    database_url: str | None = None,
    fake: WordInference | None = None,
    sandbox: JobRunner | None = None,
    **settings: Any,
) -> AsyncIterator[RunningVectors]:
    """Run both services. `settings` are passed to `run_control`."""
    fake = fake or WordInference()
    settings = {"embedding_model": MODEL, **settings}
    async with (
        run_inference_service(fake, service_token_file=write_service_token(folder)) as server,
        run_control(
            folder, database_url, sandbox, inference_target=str(server.address), **settings
        ) as control,
    ):
        yield RunningVectors(control, fake)


def paragraphs(words: Iterable[str], length: int = 40) -> str:
    return "\n\n".join(f"{word} " * length for word in words)
