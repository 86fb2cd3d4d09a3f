"""Objects and calls of vector stores for the tenancy test."""

from collections.abc import Callable, Mapping, Sequence

from corral.control.v1 import vector_store_file_service_pb2 as files_pb
from corral.control.v1 import vector_store_service_pb2 as pb
from google.protobuf.message import Message

from tests.support.control import Client
from tests.support.vectors import VectorClient, attributes

Ids = Mapping[str, str]
Call = Callable[[Ids], Sequence[Message]]


async def create_vector_store(client: Client, canary: str) -> Ids:
    """Create a store with a cancelled batch of one file, so that nothing waits for ingestion."""
    vectors = VectorClient(client)
    store = await vectors.create(name=canary, description=canary, metadata={"canary": canary})
    file = await client.create(canary.encode(), filename=canary)
    new_file = {"file_id": file.id, "attributes": attributes(canary=canary)}
    created = await vectors.call(
        "CreateVectorStoreFileBatch", vector_store_id=store.id, files=[new_file]
    )
    await vectors.call(
        "CancelVectorStoreFileBatch", vector_store_id=store.id, batch_id=created.batch.id
    )
    return {"store": store.id, "stored": file.id, "store_batch": created.batch.id}


async def observe_vector_store(client: Client, ids: Ids) -> object:
    """Read the store, its file, its batch, and the lists."""
    vectors, store = VectorClient(client), ids["store"]
    batch = {"vector_store_id": store, "batch_id": ids["store_batch"]}
    return [
        await vectors.get(store),
        await vectors.get_file(store, ids["stored"]),
        await vectors.call("ListVectorStores"),
        await vectors.call("ListVectorStoreFiles", vector_store_id=store),
        await vectors.call("GetVectorStoreFileBatch", **batch),
    ]


def store_calls() -> dict[str, Call]:
    """A valid call of each RPC of VectorStoreService."""
    return {
        "CreateVectorStore": lambda ids: [pb.CreateVectorStoreRequest(file_ids=[ids["stored"]])],
        "GetVectorStore": lambda ids: [pb.GetVectorStoreRequest(vector_store_id=ids["store"])],
        "ListVectorStores": lambda ids: [pb.ListVectorStoresRequest()],
        "UpdateVectorStore": lambda ids: [
            pb.UpdateVectorStoreRequest(vector_store_id=ids["store"], name="x")
        ],
        "DeleteVectorStore": lambda ids: [
            pb.DeleteVectorStoreRequest(vector_store_id=ids["store"])
        ],
        "SearchVectorStore": lambda ids: [
            pb.SearchVectorStoreRequest(vector_store_id=ids["store"], queries=["x"])
        ],
        "WatchVectorStore": lambda ids: [pb.WatchVectorStoreRequest(vector_store_id=ids["store"])],
    }


def store_file_calls() -> dict[str, Call]:
    """A valid call of each RPC of VectorStoreFileService."""
    return {
        "CreateVectorStoreFile": _file_call(files_pb.CreateVectorStoreFileRequest),
        "GetVectorStoreFile": _file_call(files_pb.GetVectorStoreFileRequest),
        "UpdateVectorStoreFile": _file_call(files_pb.UpdateVectorStoreFileRequest),
        "DeleteVectorStoreFile": _file_call(files_pb.DeleteVectorStoreFileRequest),
        "ListVectorStoreFileContents": _file_call(files_pb.ListVectorStoreFileContentsRequest),
        "ListVectorStoreFiles": _batch_call(files_pb.ListVectorStoreFilesRequest),
        "GetVectorStoreFileBatch": _batch_call(files_pb.GetVectorStoreFileBatchRequest),
        "CancelVectorStoreFileBatch": _batch_call(files_pb.CancelVectorStoreFileBatchRequest),
        "CreateVectorStoreFileBatch": lambda ids: [
            files_pb.CreateVectorStoreFileBatchRequest(
                vector_store_id=ids["store"],
                files=[files_pb.NewVectorStoreFile(file_id=ids["stored"])],
            )
        ],
    }


def _file_call(request: Callable[..., Message]) -> Call:
    return lambda ids: [request(vector_store_id=ids["store"], file_id=ids["stored"])]


def _batch_call(request: Callable[..., Message]) -> Call:
    return lambda ids: [request(vector_store_id=ids["store"], batch_id=ids["store_batch"])]
