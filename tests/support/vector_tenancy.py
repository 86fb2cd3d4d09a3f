"""Objects and calls of vector stores for the tenancy test."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.control import Client
from tests.support.vectors import VectorClient, attributes

Ids = Mapping[str, str]
Calls = Mapping[str, Sequence[Mapping[str, Any]]]


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
    vectors, store = VectorClient(client), ids["store"]
    batch = {"vector_store_id": store, "batch_id": ids["store_batch"]}
    return [
        await vectors.get(store),
        await vectors.get_file(store, ids["stored"]),
        await vectors.call("ListVectorStores"),
        await vectors.call("ListVectorStoreFiles", vector_store_id=store),
        await vectors.call("GetVectorStoreFileBatch", **batch),
    ]


STORE_IDS = {"vector_store_id": "store", "file_id": "stored", "batch_id": "store_batch"}
STORE_CALLS: Calls = {
    "CreateVectorStore": [{"file_ids": ["{stored}"]}],
    "UpdateVectorStore": [{"vector_store_id": "{store}", "name": "x"}],
    "SearchVectorStore": [{"vector_store_id": "{store}", "queries": ["x"]}],
}
STORE_FILE_CALLS: Calls = {
    "CreateVectorStoreFileBatch": [
        {"vector_store_id": "{store}", "files": [{"file_id": "{stored}"}]}
    ],
}
