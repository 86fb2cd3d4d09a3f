"""Vector stores over gRPC, on both databases: files in, passages out."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from control_svc.db.engine import open_database
from control_svc.vector_stores.tables import FileBatchRow
from svc_kit.errors import (
    EmbeddingModelMissing,
    EngineRestarting,
    FileNotFound,
    InvalidField,
    MissingField,
    OutOfRange,
    RequestIdReused,
    TooLong,
    VectorStoreExpired,
    VectorStoreFileBatchNotFound,
    VectorStoreFileNotFound,
    VectorStoreNotFound,
)
from tests.support.control import USER_DATA
from tests.support.vectors import (
    NO_STORE,
    RunningVectors,
    paragraphs,
    running_vectors,
    state_of,
    value,
    values,
)

CHUNKING = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 50}
ANIMALS = {"fox.txt": "The fox sleeps in the barn.", "sea.txt": "The sea is deep and cold."}


@pytest.fixture
async def running(tmp_path: Path, database_url: str | None) -> AsyncIterator[RunningVectors]:
    """Both services, on each database."""
    async with running_vectors(tmp_path, database_url) as both:
        yield both


async def test_what_is_put_in_is_found(running: RunningVectors) -> None:
    """By the words that it has, with its name, its text and a score."""
    client = running.vectors
    store_id, ids = await client.library(ANIMALS, name="animals")
    store = await client.get(store_id)
    hits = await client.search(store_id, "fox in a barn")

    assert (state_of(store), store.file_counts.completed) == ("completed", 2)
    assert store.usage_bytes > 0
    assert [hit.filename for hit in hits] == ["fox.txt", "sea.txt"]
    assert list(hits[0].texts) == [ANIMALS["fox.txt"]]
    assert hits[0].file_id == ids["fox.txt"]
    assert 1 >= hits[0].score > hits[1].score >= 0


async def test_a_threshold_and_weights_decide_what_counts(running: RunningVectors) -> None:
    """By words alone, what has none of them scores nothing."""
    client = running.vectors
    store_id, _ = await client.library(ANIMALS)
    ranking = {"score_threshold": 0.5, "vector_weight": 0, "text_weight": 1}

    assert await client.found(store_id, "barn", ranking=ranking) == ["fox.txt"]
    assert await client.found(store_id, "ocean", ranking=ranking) == []
    assert await client.found(store_id, "ocean", "barn", max_results=1) == ["fox.txt"]


async def test_a_deleted_file_is_not_found_any_more(running: RunningVectors) -> None:
    """At once, whether it leaves the store or the file itself goes; the counts follow."""
    client = running.vectors
    texts = {"a": "the red fox", "b": "the red fox", "c": "the red fox"}
    store_id, ids = await client.library(texts)
    assert sorted(await client.found(store_id, "fox")) == ["a", "b", "c"]

    await client.ask("DeleteVectorStoreFile", vector_store_id=store_id, file_id=ids["a"])
    assert sorted(await client.found(store_id, "fox")) == ["b", "c"]
    await client.client.delete(ids["b"])
    assert await client.found(store_id, "fox") == ["c"]

    store = await client.get(store_id)
    assert (store.file_counts.completed, store.file_counts.total) == (1, 1)
    with pytest.raises(VectorStoreFileNotFound):
        await client.file(store_id, ids["a"])
    await client.ask("DeleteVectorStore", vector_store_id=store_id)
    with pytest.raises(VectorStoreNotFound):
        await client.search(store_id, "fox")
    await running.control.control.sweeper.sweep()


async def test_a_file_that_has_expired_is_not_found(running: RunningVectors) -> None:
    """From its time on, before anybody sweeps; afterwards the store does not count it."""
    client = running.vectors
    store = await client.create()
    file = await client.client.create(b"the red fox", purpose=USER_DATA, ttl={"seconds": 3600})
    await client.ask("CreateVectorStoreFile", vector_store_id=store.id, file_id=file.id)
    await client.read(store.id)
    assert await client.found(store.id, "fox")

    running.control.clock.advance(hours=2)
    assert await client.found(store.id, "fox") == []
    await running.control.control.sweeper.sweep()
    assert (await client.get(store.id)).file_counts.total == 0


async def test_a_file_put_in_again_is_read_again(running: RunningVectors) -> None:
    """After it was taken out, or where it shall be another; while it is there, nothing happens."""
    client = running.vectors
    store_id, ids = await client.library({"a": "the red fox"})
    again = {"vector_store_id": store_id, "file_id": ids["a"]}
    await client.ask("CreateVectorStoreFile", **again)
    assert running.fake.embedded["the red fox"] == 1
    await client.ask("DeleteVectorStoreFile", **again)
    await client.ask("CreateVectorStoreFile", **again)
    await client.read(store_id)
    assert await client.found(store_id, "fox") == ["a"]
    changed = {**again, "attributes": values(year=2024), "chunking": CHUNKING}
    await client.ask("CreateVectorStoreFile", **changed)
    store = await client.read(store_id)
    (hit,) = await client.search(store_id, "fox")

    assert store.file_counts.completed == store.file_counts.total == 1
    assert hit.attributes["year"].number == 2024


async def test_a_long_file_is_found_by_each_part(running: RunningVectors) -> None:
    """In passages that overlap, which together are its text."""
    client, words = running.vectors, [f"topic{number}" for number in range(20)]
    store = await client.create()
    text = paragraphs(words)
    file_id = await client.put(store.id, text, chunking=CHUNKING)
    await client.read(store.id)
    hits = await client.search(store.id, "topic13", max_results=1)
    page: dict[str, Any] = {"vector_store_id": store.id, "file_id": file_id}
    first = await client.ask("ListVectorStoreFileContents", page_size=3, **page)
    rest = await client.ask("ListVectorStoreFileContents", page_token=first.next_page_token, **page)
    texts = [*first.texts, *rest.texts]

    assert "topic13" in hits[0].texts[0]
    assert all(len(each.split()) <= 100 for each in texts)
    assert text.startswith(texts[0])
    assert text.endswith(texts[-1])
    assert all(each in text for each in texts)
    assert all(texts[n + 1][:60] in texts[n] for n in range(len(texts) - 1))


async def test_filters_choose_among_files(running: RunningVectors) -> None:
    """Before anything is ranked: what they leave out takes no place."""
    client = running.vectors
    store = await client.create()
    for number in range(6):
        attributes = values(year=2020 + number, team="red" if number % 2 else "blue")
        await client.put(store.id, f"note number{number}", f"{number}", attributes=attributes)
    await client.read(store.id)

    async def left(condition: dict[str, Any]) -> list[str]:
        return sorted(await client.found(store.id, "note", filter=condition))

    late = {"comparison": {"key": "year", "comparator": 4, "values": [value(2024)]}}
    red = {"comparison": {"key": "team", "comparator": 1, "values": [value("red")]}}
    assert await left(late) == ["4", "5"]
    assert await left({"compound": {"junction": 1, "filters": [late, red]}}) == ["5"]
    assert await left({"compound": {"junction": 2, "filters": [late, red]}}) == ["1", "3", "4", "5"]


async def test_attributes_can_be_changed(running: RunningVectors) -> None:
    """And the next search goes by the new ones."""
    client = running.vectors
    store_id, ids = await client.library({"a": "the red fox"})
    changed = await client.ask(
        "UpdateVectorStoreFile",
        vector_store_id=store_id,
        file_id=ids["a"],
        attributes=values(draft=True, pages=3),
    )
    (hit,) = await client.search(store_id, "fox")

    assert changed.file.attributes["draft"].boolean is True
    assert hit.attributes["pages"].number == 3


async def test_a_store_that_nobody_uses_expires(running: RunningVectors) -> None:
    """A search puts that off; afterwards it can be seen and deleted, nothing else."""
    client, clock = running.vectors, running.control.clock
    store_id, _ = await client.library({"a": "the red fox"}, expire_after_days=2)
    clock.advance(days=1.5)
    await client.search(store_id, "fox")
    clock.advance(days=1.5)
    await client.search(store_id, "fox")
    clock.advance(days=2.1)

    assert state_of(await client.get(store_id)) == "expired"
    with pytest.raises(VectorStoreExpired):
        await client.search(store_id, "fox")
    with pytest.raises(VectorStoreExpired):
        await client.put(store_id, "more")
    await running.control.control.sweeper.sweep()
    swept = await client.get(store_id)
    assert (swept.file_counts.total, swept.usage_bytes) == (0, 0)
    await client.ask("DeleteVectorStore", vector_store_id=store_id)


async def test_a_batch_has_a_whole_life(running: RunningVectors) -> None:
    """Files together: counted, listed, and given up but for what is complete."""
    client, fake = running.vectors, running.fake
    store = await client.create()
    files = [await client.client.create(f"text {n}".encode()) for n in range(3)]
    asked = [{"file_id": file.id} for file in files]
    done = await client.ask("CreateVectorStoreFileBatch", vector_store_id=store.id, files=asked[:1])
    await client.read(store.id)
    fake.gate.clear()
    held = await client.ask("CreateVectorStoreFileBatch", vector_store_id=store.id, files=asked[1:])
    ref = {"vector_store_id": store.id, "batch_id": held.batch.id}
    cancelled = await client.ask("CancelVectorStoreFileBatch", **ref)
    fake.gate.set()
    listed = await client.ask("ListVectorStoreFiles", **ref)
    first = await client.ask(
        "CancelVectorStoreFileBatch", vector_store_id=store.id, batch_id=done.batch.id
    )

    assert state_of(held.batch) == "in_progress"
    assert (state_of(cancelled.batch), cancelled.batch.file_counts.cancelled) == ("cancelled", 2)
    assert (state_of(first.batch), first.batch.file_counts.completed) == ("completed", 1)
    assert {state_of(file) for file in listed.files} == {"cancelled"}
    assert await client.found(store.id, "text") == ["a.txt"]
    with pytest.raises(VectorStoreFileBatchNotFound):
        await client.ask("GetVectorStoreFileBatch", vector_store_id=store.id, batch_id="vsfb_1")


async def test_a_file_that_is_taken_out_while_it_is_read_stays_out(
    running: RunningVectors,
) -> None:
    """What the work would still keep is kept by nobody."""
    client, fake = running.vectors, running.fake
    fake.gate.clear()
    store = await client.create()
    file_id = await client.put(store.id, "the red fox")
    await fake.arrived.wait()
    await client.ask("DeleteVectorStoreFile", vector_store_id=store.id, file_id=file_id)
    fake.gate.set()
    other = await client.put(store.id, "the blue fox")
    await client.read(store.id)

    assert [hit.file_id for hit in await client.search(store.id, "fox")] == [other]


async def test_lists_turn_their_pages(running: RunningVectors) -> None:
    """Stores and files, both ways, before and after, also behind a file that is gone."""
    client = running.vectors
    stores = [(await client.create(name=str(n))).id for n in range(3)]
    ids = [await client.put(stores[0], f"text {n}") for n in range(5)]
    await client.read(stores[0])

    async def files(**asked: Any) -> list[int]:
        answer = await client.ask("ListVectorStoreFiles", vector_store_id=stores[0], **asked)
        return [ids.index(file.file_id) for file in answer.files]

    listed = await client.ask("ListVectorStores", page_size=2)
    assert [each.id for each in listed.vector_stores] == [stores[2], stores[1]]
    assert await files() == [4, 3, 2, 1, 0]
    assert await files(order=2, after=ids[1], page_size=2) == [2, 3]
    assert await files(order=2, before=ids[3], page_size=2) == [1, 2]
    assert await files(state=4) == []
    await client.ask("DeleteVectorStoreFile", vector_store_id=stores[0], file_id=ids[2])
    assert await files(after=ids[2]) == [1, 0]
    await running.control.control.sweeper.sweep()
    assert await files(after=ids[2]) == [1, 0]


async def test_a_store_is_created_once_under_a_request_id(running: RunningVectors) -> None:
    """The second time the first one comes back; another request under its id is refused."""
    client = running.vectors
    file = await client.client.create(b"the red fox")
    asked: dict[str, Any] = {"request_id": "r", "file_ids": [file.id], "metadata": {"a": "b"}}
    first, second = await client.create(**asked), await client.create(**asked)

    assert first.id == second.id
    assert first.file_counts.total == 1
    with pytest.raises(RequestIdReused):
        await client.create(request_id="r", name="other")


async def test_without_an_embedding_model_files_are_refused(
    tmp_path: Path, database_url: str | None
) -> None:
    """With the command that adds one; empty stores can be made all the same."""
    async with running_vectors(tmp_path, database_url, embedding_model=None) as running:
        client = running.vectors
        store = await client.create(name="later")
        for attempt in (client.put(store.id, "text"), client.search(store.id, "text")):
            with pytest.raises(EmbeddingModelMissing, match="corral up --embedding-model"):
                await attempt


async def test_a_file_lives_through_two_engines_and_no_more(
    tmp_path: Path, database_url: str | None
) -> None:
    """It is read in spite of two that died over it; a third time fails it with the reason."""
    jobs = {"poll_interval_s": 0.05}
    async with running_vectors(tmp_path, database_url, jobs=jobs) as running:
        running.control.clock.step_s = 1  # backing off takes no time
        client, fake = running.vectors, running.fake
        store = await client.create()
        fake.failures = [EngineRestarting(phase="running", retry_after=0.0)] * 2
        good = await client.put(store.id, "the red fox")
        await client.read(store.id)
        fake.failures = [EngineRestarting(phase="running", retry_after=0.0)] * 3
        bad = await client.put(store.id, "poison")
        await client.read(store.id)
        failed = await client.file(store.id, bad)

        assert state_of(await client.file(store.id, good)) == "completed"
        assert (state_of(failed), failed.error.code) == ("failed", 1)
        assert "engine" in failed.error.message.lower()


@pytest.mark.parametrize(
    ("method", "asked", "error"),
    [
        ("CreateVectorStore", {"name": "x" * 256}, TooLong),
        ("CreateVectorStore", {"expire_after_days": 366}, OutOfRange),
        ("CreateVectorStore", {"file_ids": ["file-none"]}, FileNotFound),
        ("CreateVectorStore", {"file_ids": ["a"] * 501}, TooLong),
        ("CreateVectorStore", {"metadata": {"a": "\n"}}, InvalidField),
        ("ListVectorStores", {"after": "vs_x"}, InvalidField),
        ("GetVectorStore", {"vector_store_id": NO_STORE}, VectorStoreNotFound),
        ("SearchVectorStore", {}, MissingField),
        ("SearchVectorStore", {"queries": ["x"] * 17}, TooLong),
        ("SearchVectorStore", {"queries": ["x" * 4097]}, TooLong),
        ("SearchVectorStore", {"queries": ["x"], "max_results": 51}, OutOfRange),
        ("SearchVectorStore", {"queries": ["x"], "filter": {}}, MissingField),
        ("SearchVectorStore", {"queries": ["x"], "ranking": {"text_weight": 2}}, OutOfRange),
        ("CreateVectorStoreFile", {}, MissingField),
        ("CreateVectorStoreFile", {"file_id": "\x00"}, FileNotFound),
        (
            "CreateVectorStoreFile",
            {"file_id": "x", "chunking": {"max_chunk_size_tokens": 99}},
            OutOfRange,
        ),
        ("CreateVectorStoreFile", {"file_id": "x", "attributes": values(a="x" * 513)}, TooLong),
        ("CreateVectorStoreFileBatch", {}, MissingField),
        ("CreateVectorStoreFileBatch", {"files": [{"file_id": "a"}] * 2}, InvalidField),
        ("GetVectorStoreFile", {"file_id": "\x00"}, VectorStoreFileNotFound),
    ],
)
async def test_what_is_wrong_is_refused(
    running: RunningVectors, method: str, asked: dict[str, Any], error: type[Exception]
) -> None:
    """Each with its own error, before anything is done."""
    client = running.vectors
    store = await client.create()
    if method not in ("CreateVectorStore", "ListVectorStores"):
        asked = {"vector_store_id": store.id, **asked}

    with pytest.raises(error):
        await client.ask(method, **asked)
    assert (await client.get(store.id)).file_counts.total == 0


async def test_blanks_make_no_passage(running: RunningVectors) -> None:
    """A page of them has no token, and so no end in tokens."""
    client = running.vectors
    store_id, _ = await client.library({"w": "the red fox" + " " * 100_000 + "the blue fox"})
    hits = await client.search(store_id, "fox")

    assert " ".join(" ".join(hit.texts[0] for hit in hits).split()) == "the red fox the blue fox"
    assert all(len(hit.texts[0]) < 2000 for hit in hits)


async def test_batches_go_with_their_store(tmp_path: Path, database_url: str | None) -> None:
    """No row of theirs is left."""
    async with running_vectors(tmp_path, database_url) as running:
        client = running.vectors
        store_id, ids = await client.library(ANIMALS)
        files = [{"file_id": ids["fox.txt"]}]
        await client.ask("CreateVectorStoreFileBatch", vector_store_id=store_id, files=files)
        await client.ask("DeleteVectorStore", vector_store_id=store_id)
    query = select(func.count()).where(FileBatchRow.store_id == store_id)
    async with (
        open_database(database_url, tmp_path / "control") as database,
        database.writer.connect() as connection,
    ):
        assert (await connection.execute(query)).scalar_one() == 0


async def test_work_that_is_broken_off_goes_on_where_it_was(
    tmp_path: Path, database_url: str | None
) -> None:
    """Passages that are kept are not computed again, none is found before all are, none twice."""
    text = paragraphs([f"topic{number}" for number in range(120)])
    chunking = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}
    async with running_vectors(tmp_path, database_url) as first:
        store = await first.vectors.create()
        first.fake.most_calls = 2
        await first.vectors.put(store.id, text, chunking=chunking)
        await first.fake.stuck.wait()
        kept = set(first.fake.embedded)
        assert await first.vectors.found(store.id, "topic1") == []
    async with running_vectors(tmp_path, database_url) as second:
        await second.vectors.read(store.id)
        again = set(second.fake.embedded) & kept
        hits = await second.vectors.search(store.id, "topic1", max_results=50)
        texts = [hit.texts[0] for hit in hits]

    assert len(kept) == 32
    assert not again
    assert len(texts) == len(set(texts))
    assert "topic1" in texts[0]
