"""Adapter files, and a client of AdapterService."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from corral.control.v1 import adapter_pb2
from corral.control.v1 import adapter_service_pb2 as pb
from corral.control.v1.adapter_service_pb2_grpc import AdapterServiceStub

from svc_kit.rpc.client import translate_errors
from tests.support.control import GrpcClient
from tests.support.gguf_files import F32Tensor, gguf_bytes

TARGET = "blk.0.attn_q.weight"


def lora_pair(
    name: str = TARGET, a: Sequence[int] = (64, 8), b: Sequence[int] = (8, 32)
) -> list[F32Tensor]:
    """Build the two LoRA matrices of a tensor."""
    return [F32Tensor(f"{name}.lora_a", tuple(a)), F32Tensor(f"{name}.lora_b", tuple(b))]


def adapter_bytes(tensors: Sequence[F32Tensor] = (), **changes: Any) -> bytes:
    """Build an adapter file. `changes` are metadata with "__" for "."; None removes a key."""
    metadata = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "general.name": "voice",
        "general.base_model.0.name": "Tiny",
        "adapter.type": "lora",
        "adapter.lora.alpha": 16.0,
    }
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    kept = {key: value for key, value in metadata.items() if value is not None}
    return gguf_bytes(kept, tensors or lora_pair())


@dataclass
class Registry:
    """AdapterService for one project. Raises DomainErrors.

    RPCs for inference frontends are called with the metadata `service`.
    """

    client: GrpcClient
    service: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        self.stub = AdapterServiceStub(self.client.channel)

    @classmethod
    def of(cls, client: GrpcClient, service: tuple[tuple[str, str], ...] = ()) -> "Registry":
        return cls(client, service or client.metadata)

    async def send(self, pieces: Sequence[adapter_pb2.AdapterHeader | bytes]) -> Any:
        requests = [
            pb.CreateAdapterRequest(chunk=piece)
            if isinstance(piece, bytes)
            else pb.CreateAdapterRequest(header=piece)
            for piece in pieces
        ]
        return (await self.client.call(self.stub.CreateAdapter, iter(requests))).adapter

    async def create(self, content: bytes | None = None, name: str = "voice", **header: Any) -> Any:
        """Register an adapter from two chunks, or from the source in the header."""
        about = adapter_pb2.AdapterHeader(name=name, **header)
        if "file_id" in header or "path" in header:
            return await self.send([about])
        content = adapter_bytes() if content is None else content
        middle = len(content) // 2
        return await self.send([about, content[:middle], content[middle:]])

    async def get(self, adapter: str, **request: Any) -> adapter_pb2.Adapter:
        answer: pb.GetAdapterResponse = await self.call("GetAdapter", adapter=adapter, **request)
        return answer.adapter

    async def call(self, method: str, **request: Any) -> Any:
        message = getattr(pb, f"{method}Request")(**request)
        metadata = self.service if method == "ReportAdapters" else self.client.metadata
        return await replace(self.client, metadata=metadata).call(
            getattr(self.stub, method), message
        )

    async def watch(self, revision: str = "") -> AsyncGenerator[pb.WatchDesiredResponse, None]:
        request = pb.WatchDesiredRequest(revision=revision)
        with translate_errors():
            async for event in self.stub.WatchDesired(request, metadata=self.service):
                yield event

    async def download(self, sha256: str) -> bytes:
        request = pb.DownloadAdapterRequest(sha256=sha256)
        with translate_errors():
            call = self.stub.DownloadAdapter(request, metadata=self.service)
            return b"".join([message.chunk async for message in call])
