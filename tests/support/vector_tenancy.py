"""What the tenancy test knows of vector stores and their files."""

from collections.abc import Callable, Mapping, Sequence

from corral.control.v1 import vector_store_file_service_pb2 as files_pb
from corral.control.v1 import vector_store_service_pb2 as pb
from google.protobuf.message import Message

from tests.support.control import Client
from tests.support.vectors import VectorClient, values

Ids = Mapping[str, str]
Call = Callable[[Ids], Sequence[Message]]


async def create_vector_store(client: Client, canary: str) -> Ids:
    """A store with a batch of one file that was given up: nobody waits for it to be read."""
    vectors = VectorClient(client)
    store = await vectors.create(name=canary, description=canary, metadata={"canary": canary})
    file = await client.create(canary.encode(), filename=canary)
    asked = {"file_id": file.id, "attributes": values(canary=canary)}
    made = await vectors.ask("CreateVectorStoreFileBatch", vector_store_id=store.id, files=[asked])
    await vectors.ask(
        "CancelVectorStoreFileBatch", vector_store_id=store.id, batch_id=made.batch.id
    )
    return {"store": store.id, "stored": file.id, "store_batch": made.batch.id}


async def observe_vector_store(client: Client, ids: Ids) -> object:
    """The store, the batch, the file in it and the lists."""
    vectors, store = VectorClient(client), ids["store"]
    batch = {"vector_store_id": store, "batch_id": ids["store_batch"]}
    return [
        await vectors.get(store),
        await vectors.file(store, ids["stored"]),
        await vectors.ask("ListVectorStores"),
        await vectors.ask("ListVectorStoreFiles", vector_store_id=store),
        await vectors.ask("GetVectorStoreFileBatch", **batch),
    ]


def store_calls() -> dict[str, Call]:
    """A good call of each RPC of VectorStoreService."""
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
    """A good call of each RPC of VectorStoreFileService."""
    in_store = {
        name: _in_store(getattr(files_pb, f"{name}Request"))
        for name in (
            "CreateVectorStoreFile",
            "GetVectorStoreFile",
            "UpdateVectorStoreFile",
            "DeleteVectorStoreFile",
            "ListVectorStoreFileContents",
        )
    }
    of_batch = {
        name: _of_batch(getattr(files_pb, f"{name}Request"))
        for name in (
            "ListVectorStoreFiles",
            "GetVectorStoreFileBatch",
            "CancelVectorStoreFileBatch",
        )
    }
    return {
        **in_store,
        **of_batch,
        "CreateVectorStoreFileBatch": lambda ids: [
            files_pb.CreateVectorStoreFileBatchRequest(
                vector_store_id=ids["store"],
                files=[files_pb.NewVectorStoreFile(file_id=ids["stored"])],
            )
        ],
    }


def _in_store(request: Callable[..., Message]) -> Call:
    return lambda ids: [request(vector_store_id=ids["store"], file_id=ids["stored"])]


def _of_batch(request: Callable[..., Message]) -> Call:
    return lambda ids: [request(vector_store_id=ids["store"], batch_id=ids["store_batch"])]
