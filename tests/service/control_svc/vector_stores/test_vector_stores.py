"""VectorStoreService and VectorStoreFileService on both databases."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from control_svc.db.engine import open_database
from control_svc.vector_stores.tables import FileBatchRow
from svc_kit import errors
from tests.support.batches import state_name
from tests.support.control import USER_DATA
from tests.support.vectors import (
    NO_STORE,
    RunningVectors,
    VectorClient,
    attribute_value,
    attributes,
    paragraphs,
    run_vectors,
)

CHUNKING = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 50}
ANIMALS = {"fox.txt": "The fox sleeps in the barn.", "sea.txt": "The sea is deep and cold."}


@pytest.fixture
async def running(tmp_path: Path, database_url: str | None) -> AsyncIterator[RunningVectors]:
    """Both services, on each database."""
    async with run_vectors(tmp_path, database_url) as services:
        yield services


@pytest.fixture
def client(running: RunningVectors) -> VectorClient:
    return running.vectors


async def test_a_search_finds_files(client: VectorClient) -> None:
    """Hits have a filename, a text and a score."""
    store_id, ids = await client.create_with_files(ANIMALS, name="animals")
    store = await client.get(store_id)
    hits = await client.search(store_id, "fox in a barn")

    assert (state_name(store), store.file_counts.completed) == ("completed", 2)
    assert store.usage_bytes > 0
    assert [hit.filename for hit in hits] == ["fox.txt", "sea.txt"]
    assert list(hits[0].texts) == [ANIMALS["fox.txt"]]
    assert hits[0].file_id == ids["fox.txt"]
    assert 1 >= hits[0].score > hits[1].score >= 0


async def test_ranking_options_select_hits(client: VectorClient) -> None:
    """With the word score only, files without a word of the query are below the threshold."""
    store_id, _ = await client.create_with_files(ANIMALS)
    ranking = {"score_threshold": 0.5, "vector_weight": 0, "text_weight": 1}

    assert await client.search_names(store_id, "barn", ranking=ranking) == ["fox.txt"]
    assert await client.search_names(store_id, "ocean", ranking=ranking) == []
    assert await client.search_names(store_id, "ocean", "barn", max_results=1) == ["fox.txt"]


async def test_deleted_files_are_not_found(client: VectorClient, running: RunningVectors) -> None:
    """After removal from the store, deletion of the file, and deletion of the store."""
    texts = {"a": "the red fox", "b": "the red fox", "c": "the red fox"}
    store_id, ids = await client.create_with_files(texts)
    assert sorted(await client.search_names(store_id, "fox")) == ["a", "b", "c"]

    await client.call("DeleteVectorStoreFile", vector_store_id=store_id, file_id=ids["a"])
    assert sorted(await client.search_names(store_id, "fox")) == ["b", "c"]
    await client.client.delete(ids["b"])
    assert await client.search_names(store_id, "fox") == ["c"]

    store = await client.get(store_id)
    assert (store.file_counts.completed, store.file_counts.total) == (1, 1)
    with pytest.raises(errors.VectorStoreFileNotFound):
        await client.get_file(store_id, ids["a"])
    await client.call("DeleteVectorStore", vector_store_id=store_id)
    with pytest.raises(errors.VectorStoreNotFound):
        await client.search(store_id, "fox")
    await running.control.control.sweeper.sweep()


async def test_an_expired_file_is_not_found(client: VectorClient, running: RunningVectors) -> None:
    """Even before the sweep, which removes it from the counts."""
    store = await client.create()
    file = await client.client.create(b"the red fox", purpose=USER_DATA, ttl={"seconds": 3600})
    await client.call("CreateVectorStoreFile", vector_store_id=store.id, file_id=file.id)
    await client.wait_for_files(store.id)
    assert await client.search_names(store.id, "fox")

    running.control.clock.advance(hours=2)
    assert await client.search_names(store.id, "fox") == []
    await running.control.control.sweeper.sweep()
    assert (await client.get(store.id)).file_counts.total == 0


async def test_adding_a_file_again_ingests_it_only_if_necessary(
    client: VectorClient, running: RunningVectors
) -> None:
    """After its removal, or with other parameters."""
    store_id, ids = await client.create_with_files({"a": "the red fox"})
    again = {"vector_store_id": store_id, "file_id": ids["a"]}
    await client.call("CreateVectorStoreFile", **again)
    assert running.fake.embedded["the red fox"] == 1
    await client.call("DeleteVectorStoreFile", **again)
    await client.call("CreateVectorStoreFile", **again)
    await client.wait_for_files(store_id)
    assert await client.search_names(store_id, "fox") == ["a"]
    changed = {**again, "attributes": attributes(year=2024), "chunking": CHUNKING}
    await client.call("CreateVectorStoreFile", **changed)
    store = await client.wait_for_files(store_id)
    (hit,) = await client.search(store_id, "fox")

    assert store.file_counts.completed == store.file_counts.total == 1
    assert hit.attributes["year"].number == 2024


async def test_a_long_file_is_split_into_overlapping_chunks(running: RunningVectors) -> None:
    """Each can be found, and together they are the text."""
    client, words = running.vectors, [f"topic{number}" for number in range(20)]
    store = await client.create()
    text = paragraphs(words)
    file_id = await client.add_file(store.id, text, chunking=CHUNKING)
    await client.wait_for_files(store.id)
    hits = await client.search(store.id, "topic13", max_results=1)
    page: dict[str, Any] = {"vector_store_id": store.id, "file_id": file_id}
    first = await client.call("ListVectorStoreFileContents", page_size=3, **page)
    rest = await client.call(
        "ListVectorStoreFileContents", page_token=first.next_page_token, **page
    )
    texts = [*first.texts, *rest.texts]

    assert "topic13" in hits[0].texts[0]
    assert all(len(chunk.split()) <= 100 for chunk in texts)
    assert text.startswith(texts[0])
    assert text.endswith(texts[-1])
    assert all(chunk in text for chunk in texts)
    assert all(texts[n + 1][:60] in texts[n] for n in range(len(texts) - 1))


async def test_filters_select_files(client: VectorClient) -> None:
    store = await client.create()
    for number in range(6):
        team = "red" if number % 2 else "blue"
        values = attributes(year=2020 + number, team=team)
        await client.add_file(store.id, f"note number{number}", f"{number}", attributes=values)
    await client.wait_for_files(store.id)

    async def search(condition: dict[str, Any]) -> list[str]:
        return sorted(await client.search_names(store.id, "note", filter=condition))

    late = {"comparison": {"key": "year", "comparator": 4, "values": [attribute_value(2024)]}}
    red = {"comparison": {"key": "team", "comparator": 1, "values": [attribute_value("red")]}}
    assert await search(late) == ["4", "5"]
    assert await search({"compound": {"junction": 1, "filters": [late, red]}}) == ["5"]
    assert await search({"compound": {"junction": 2, "filters": [late, red]}}) == list("1345")


async def test_attributes_can_be_updated(client: VectorClient) -> None:
    store_id, ids = await client.create_with_files({"a": "the red fox"})
    changed = await client.call(
        "UpdateVectorStoreFile",
        vector_store_id=store_id,
        file_id=ids["a"],
        attributes=attributes(draft=True, pages=3),
    )
    (hit,) = await client.search(store_id, "fox")

    assert changed.file.attributes["draft"].boolean is True
    assert hit.attributes["pages"].number == 3


async def test_an_unused_store_expires(running: RunningVectors) -> None:
    """A search postpones it. An expired store can only be read and deleted."""
    client, clock = running.vectors, running.control.clock
    store_id, _ = await client.create_with_files({"a": "the red fox"}, expire_after_days=2)
    clock.advance(days=1.5)
    await client.search(store_id, "fox")
    clock.advance(days=1.5)
    await client.search(store_id, "fox")
    clock.advance(days=2.1)

    assert state_name(await client.get(store_id)) == "expired"
    with pytest.raises(errors.VectorStoreExpired):
        await client.search(store_id, "fox")
    with pytest.raises(errors.VectorStoreExpired):
        await client.add_file(store_id, "more")
    await running.control.control.sweeper.sweep()
    swept = await client.get(store_id)
    assert (swept.file_counts.total, swept.usage_bytes) == (0, 0)
    await client.call("DeleteVectorStore", vector_store_id=store_id)


async def test_batches_are_counted_listed_and_cancelled(running: RunningVectors) -> None:
    """Cancelling has no effect on completed files."""
    client, fake = running.vectors, running.fake
    store = await client.create()
    files = [await client.client.create(f"text {n}".encode()) for n in range(3)]
    new_files = [{"file_id": file.id} for file in files]
    completed = await client.call(
        "CreateVectorStoreFileBatch", vector_store_id=store.id, files=new_files[:1]
    )
    await client.wait_for_files(store.id)
    fake.gate.clear()
    running_batch = await client.call(
        "CreateVectorStoreFileBatch", vector_store_id=store.id, files=new_files[1:]
    )
    ref = {"vector_store_id": store.id, "batch_id": running_batch.batch.id}
    cancelled = await client.call("CancelVectorStoreFileBatch", **ref)
    fake.gate.set()
    listed = await client.call("ListVectorStoreFiles", **ref)
    unchanged = await client.call(
        "CancelVectorStoreFileBatch", vector_store_id=store.id, batch_id=completed.batch.id
    )

    assert state_name(running_batch.batch) == "in_progress"
    assert (state_name(cancelled.batch), cancelled.batch.file_counts.cancelled) == ("cancelled", 2)
    assert (state_name(unchanged.batch), unchanged.batch.file_counts.completed) == ("completed", 1)
    assert {state_name(file) for file in listed.files} == {"cancelled"}
    assert await client.search_names(store.id, "text") == ["a.txt"]
    with pytest.raises(errors.VectorStoreFileBatchNotFound):
        await client.call("GetVectorStoreFileBatch", vector_store_id=store.id, batch_id="vsfb_1")


async def test_a_file_that_is_removed_during_ingestion_is_not_stored(
    running: RunningVectors,
) -> None:
    """The job does not store its chunks."""
    client, fake = running.vectors, running.fake
    fake.gate.clear()
    store = await client.create()
    file_id = await client.add_file(store.id, "the red fox")
    await fake.arrived.wait()
    await client.call("DeleteVectorStoreFile", vector_store_id=store.id, file_id=file_id)
    fake.gate.set()
    other = await client.add_file(store.id, "the blue fox")
    await client.wait_for_files(store.id)

    assert [hit.file_id for hit in await client.search(store.id, "fox")] == [other]


async def test_stores_and_files_are_listed_in_pages(
    client: VectorClient, running: RunningVectors
) -> None:
    """In both orders, before and after a cursor, which may be a removed file."""
    stores = [(await client.create(name=str(n))).id for n in range(3)]
    ids = [await client.add_file(stores[0], f"text {n}") for n in range(5)]
    await client.wait_for_files(stores[0])

    async def files(**fields: Any) -> list[int]:
        page = await client.call("ListVectorStoreFiles", vector_store_id=stores[0], **fields)
        return [ids.index(file.file_id) for file in page.files]

    listed = await client.call("ListVectorStores", page_size=2)
    assert [store.id for store in listed.vector_stores] == [stores[2], stores[1]]
    assert await files() == [4, 3, 2, 1, 0]
    assert await files(order=2, after=ids[1], page_size=2) == [2, 3]
    assert await files(order=2, before=ids[3], page_size=2) == [1, 2]
    assert await files(state=4) == []
    await client.call("DeleteVectorStoreFile", vector_store_id=stores[0], file_id=ids[2])
    assert await files(after=ids[2]) == [1, 0]
    await running.control.control.sweeper.sweep()
    assert await files(after=ids[2]) == [1, 0]


async def test_files_and_searches_require_an_embedding_model(
    tmp_path: Path, database_url: str | None
) -> None:
    """The error contains the command that adds one. Empty stores can be created."""
    async with run_vectors(tmp_path, database_url, embedding_model=None) as running:
        client = running.vectors
        store = await client.create(name="later")
        for attempt in (client.add_file(store.id, "text"), client.search(store.id, "text")):
            with pytest.raises(errors.EmbeddingModelMissing, match="corral up --embedding-model"):
                await attempt


async def test_a_file_fails_after_three_engine_deaths(
    tmp_path: Path, database_url: str | None
) -> None:
    """Two deaths are retried."""
    jobs = {"poll_interval_s": 0.05}
    async with run_vectors(tmp_path, database_url, jobs=jobs) as running:
        running.control.clock.step_s = 1  # so that backoffs end at once
        client, fake = running.vectors, running.fake
        store = await client.create()
        fake.failures = [errors.EngineRestarting(phase="running", retry_after=0.0)] * 2
        survivor = await client.add_file(store.id, "the red fox")
        await client.wait_for_files(store.id)
        fake.failures = [errors.EngineRestarting(phase="running", retry_after=0.0)] * 3
        poison = await client.add_file(store.id, "poison")
        await client.wait_for_files(store.id)
        failed = await client.get_file(store.id, poison)

        assert state_name(await client.get_file(store.id, survivor)) == "completed"
        assert (state_name(failed), failed.error.code) == ("failed", 1)
        assert "engine" in failed.error.message.lower()


async def test_a_file_that_takes_too_long_fails(tmp_path: Path, database_url: str | None) -> None:
    """Its error has the limit, and its slot is free."""
    limits = {"files_at_once": 1, "file_timeout_s": 2}
    async with run_vectors(tmp_path, database_url, vector_stores=limits) as running:
        client, fake = running.vectors, running.fake
        fake.held = "slow"
        fake.gate.clear()
        store = await client.create()
        slow = await client.add_file(store.id, "slow")
        fast = await client.add_file(store.id, "fast")
        await client.wait_for_files(store.id)
        failed = await client.get_file(store.id, slow)

        assert (state_name(failed), failed.error.code) == ("failed", 1)
        assert failed.error.message.endswith("takes too long: the limit is 2 seconds.")
        assert state_name(await client.get_file(store.id, fast)) == "completed"


async def test_a_small_file_is_ready_while_another_project_has_slow_ones(tmp_path: Path) -> None:
    """One of those gives up its slot, and continues later."""
    limits: dict[str, Any] = {
        "vector_stores": {"files_at_once": 3},
        "jobs": {"poll_interval_s": 0.1},
    }
    async with run_vectors(tmp_path, **limits) as running:
        client, fake = running.vectors, running.fake
        other = VectorClient(running.control.of_project("other"))
        fake.held = "slow"
        fake.gate.clear()
        store, other_store = await client.create(), await other.create()
        for number in range(3):
            await client.add_file(store.id, f"slow {number}")
        while fake.num_calls < 3:
            fake.arrived.clear()
            await fake.arrived.wait()
        await other.add_file(other_store.id, "fast")
        ready = await other.wait_for_files(other_store.id)
        waiting = await client.get(store.id)
        fake.gate.set()
        completed = await client.wait_for_files(store.id)

    assert (ready.file_counts.completed, waiting.file_counts.in_progress) == (1, 3)
    assert completed.file_counts.completed == 3


async def test_a_file_whose_bytes_are_lost_fails_with_the_cause(running: RunningVectors) -> None:
    """It is not reported as deleted, and is tried again once an operator has restored it."""
    client = running.vectors
    store = await client.create()
    file = await running.control.client.create(b"the red fox")
    (path,) = running.control.stored()
    path.unlink()

    await client.call("CreateVectorStoreFile", vector_store_id=store.id, file_id=file.id)
    await client.wait_for_files(store.id)
    failed = await client.get_file(store.id, file.id)

    assert state_name(failed) == "failed"
    assert "lost stored bytes" in failed.error.message


INVALID_REQUESTS: list[tuple[str, dict[str, Any], type[Exception]]] = [
    ("CreateVectorStore", {"name": "x" * 256}, errors.TooLong),
    ("CreateVectorStore", {"expire_after_days": 366}, errors.OutOfRange),
    ("CreateVectorStore", {"file_ids": ["file-none"]}, errors.FileNotFound),
    ("CreateVectorStore", {"file_ids": ["a"] * 501}, errors.TooLong),
    ("CreateVectorStore", {"metadata": {"a": "\n"}}, errors.InvalidField),
    ("ListVectorStores", {"after": "vs_x"}, errors.InvalidField),
    ("GetVectorStore", {"vector_store_id": NO_STORE}, errors.VectorStoreNotFound),
    ("SearchVectorStore", {}, errors.MissingField),
    ("SearchVectorStore", {"queries": ["x"] * 17}, errors.TooLong),
    ("SearchVectorStore", {"queries": ["x" * 4097]}, errors.TooLong),
    ("SearchVectorStore", {"queries": ["x"], "max_results": 51}, errors.OutOfRange),
    ("SearchVectorStore", {"queries": ["x"], "filter": {}}, errors.MissingField),
    ("SearchVectorStore", {"queries": ["x"], "ranking": {"text_weight": 2}}, errors.OutOfRange),
    ("CreateVectorStoreFile", {}, errors.MissingField),
    ("CreateVectorStoreFile", {"file_id": "\x00"}, errors.FileNotFound),
    (
        "CreateVectorStoreFile",
        {"file_id": "x", "chunking": {"max_chunk_size_tokens": 99}},
        errors.OutOfRange,
    ),
    (
        "CreateVectorStoreFile",
        {"file_id": "x", "attributes": attributes(a="x" * 513)},
        errors.TooLong,
    ),
    ("CreateVectorStoreFileBatch", {}, errors.MissingField),
    ("CreateVectorStoreFileBatch", {"files": [{"file_id": "a"}] * 2}, errors.InvalidField),
    ("GetVectorStoreFile", {"file_id": "\x00"}, errors.VectorStoreFileNotFound),
]


async def test_invalid_requests_are_rejected(
    client: VectorClient, subtests: pytest.Subtests
) -> None:
    """Each with its own error, and without an effect."""
    store = await client.create()
    for method, fields, error in INVALID_REQUESTS:
        of_store = method not in ("CreateVectorStore", "ListVectorStores")
        reference = {"vector_store_id": store.id} if of_store else {}
        with subtests.test(method=method, fields=fields), pytest.raises(error):
            await client.call(method, **{**reference, **fields})
    assert (await client.get(store.id)).file_counts.total == 0


async def test_whitespace_is_not_stored(client: VectorClient) -> None:
    """It has no tokens, so it would not end a chunk."""
    store_id, _ = await client.create_with_files(
        {"w": "the red fox" + " " * 100_000 + "the blue fox"}
    )
    hits = await client.search(store_id, "fox")

    assert " ".join(" ".join(hit.texts[0] for hit in hits).split()) == "the red fox the blue fox"
    assert all(len(hit.texts[0]) < 2000 for hit in hits)


async def test_batches_are_deleted_with_their_store(
    tmp_path: Path, database_url: str | None
) -> None:
    """No row remains."""
    async with run_vectors(tmp_path, database_url) as running:
        client = running.vectors
        store_id, ids = await client.create_with_files(ANIMALS)
        files = [{"file_id": ids["fox.txt"]}]
        await client.call("CreateVectorStoreFileBatch", vector_store_id=store_id, files=files)
        await client.call("DeleteVectorStore", vector_store_id=store_id)
    query = sa.select(sa.func.count()).where(FileBatchRow.store_id == store_id)
    async with (
        open_database(database_url, tmp_path / "control") as database,
        database.writer.connect() as connection,
    ):
        assert (await connection.execute(query)).scalar_one() == 0


async def test_interrupted_ingestion_resumes(tmp_path: Path, database_url: str | None) -> None:
    """Stored chunks are not embedded again, and are found only after the last one is stored."""
    text = paragraphs([f"topic{number}" for number in range(120)])
    chunking = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}
    async with run_vectors(tmp_path, database_url) as first:
        store = await first.vectors.create()
        first.fake.max_calls = 2
        await first.vectors.add_file(store.id, text, chunking=chunking)
        await first.fake.blocked.wait()
        stored = set(first.fake.embedded)
        assert await first.vectors.search_names(store.id, "topic1") == []
    async with run_vectors(tmp_path, database_url) as second:
        await second.vectors.wait_for_files(store.id)
        repeated = set(second.fake.embedded) & stored
        hits = await second.vectors.search(store.id, "topic1", max_results=50)
        texts = [hit.texts[0] for hit in hits]

    assert len(stored) == 32
    assert not repeated
    assert len(texts) == len(set(texts))
    assert "topic1" in texts[0]
