"""Vector stores with an encoder and the official SDK: helpers, search, and kills.

The encoder is all-MiniLM-L6-v2, whose vectors are compared with published similarities too."""

import io
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from tests.support.documents import docx, pdf
from tests.support.minilm import load_minilm, minilm_path
from tests.support.moving import corral, read_id_map
from tests.support.sdk_batches import CONTROL, ENGINE, kill_process
from tests.support.services import RESTART_RETRIES, Corral, corral_up

pytestmark = pytest.mark.e2e

CORPUS = {
    "cooking.md": "# Bread\n\nKnead the dough for ten minutes, let it rise, bake it in a hot oven.",
    "cats.txt": "A cat sleeps most of the day. Kittens play with everything that moves.",
    "space.html": "<html><script>var x;</script><h1>Orbits</h1><p>The moon circles the earth once a"
    " month; rockets have landed on it.</p></html>",
    "errors.json": '{"E1042": "the printer has no paper", "E1043": "the printer is on fire"}',
    "finance.py": "def interest(capital, rate):\n    # what the bank pays for savings\n"
    "    return capital * rate\n",
}
ENCODER = "minilm"


@pytest.fixture(scope="module")
def searching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """`corral up` with the demo model and an encoder."""
    folder = tmp_path_factory.mktemp("searching")
    with corral_up(folder, "--embedding-model", f"{ENCODER}={minilm_path()}") as corral:
        yield corral


@pytest.fixture(scope="module")
def client(searching: Corral) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=searching.api, api_key="unused", max_retries=RESTART_RETRIES
    ) as connected:
        yield connected


@pytest.fixture(scope="module")
def library(client: openai.OpenAI) -> str:
    """Create a store with the corpus; return its id."""
    store = client.vector_stores.create(name="library", metadata={"shelf": "3"})
    files = [(name, text.encode()) for name, text in CORPUS.items()]
    batch = client.vector_stores.file_batches.upload_and_poll(store.id, files=files)

    assert (batch.status, batch.object) == ("completed", "vector_store.files_batch")
    assert batch.file_counts.completed == batch.file_counts.total == len(CORPUS)
    return store.id


def search(client: openai.OpenAI, store_id: str, query: str | list[str], **extra: Any) -> list[str]:
    """Return the names of the files in the results, best first."""
    return [hit.filename for hit in client.vector_stores.search(store_id, query=query, **extra)]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("How do I make a loaf?", "cooking.md"),
        ("pets that rest a lot", "cats.txt"),
        ("astronauts and satellites", "space.html"),
        ("E1042", "errors.json"),
        ("money in an account", "finance.py"),
    ],
)
def test_the_best_file_is_the_first_result(
    client: openai.OpenAI, library: str, query: str, name: str
) -> None:
    """By meaning for queries without its words, by words for queries without meaning."""
    page = client.vector_stores.search(library, query=query, max_num_results=3)
    scores = [hit.score for hit in page.data]

    assert page.data[0].filename == name
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert "var x" not in page.data[0].content[0].text


def test_objects_have_openais_shape(client: openai.OpenAI, library: str) -> None:
    """Every field of the SDK's types."""
    store = client.vector_stores.retrieve(library)
    files = client.vector_stores.files.list(library, order="asc").data
    (first,) = [each for each in files if client.files.retrieve(each.id).filename == "cooking.md"]
    content = client.vector_stores.files.content(first.id, vector_store_id=library)
    page = client.vector_stores.search(library, query="bread").model_dump()

    assert (store.object, store.status, store.name) == ("vector_store", "completed", "library")
    assert store.metadata == {"shelf": "3"}
    assert store.usage_bytes == sum(file.usage_bytes for file in files) > 0
    assert store.last_active_at
    assert (first.object, first.status, first.last_error) == (
        "vector_store.file",
        "completed",
        None,
    )
    assert first.chunking_strategy is not None
    assert first.chunking_strategy.model_dump() == {
        "type": "static",
        "static": {"max_chunk_size_tokens": 800, "chunk_overlap_tokens": 400},
    }
    assert [(each.type, each.text) for each in content] == [("text", CORPUS["cooking.md"])]
    assert page["object"] == "vector_store.search_results.page"
    assert page["search_query"] == ["bread"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK deprecates Assistants
def test_a_store_is_exported_and_imported_with_its_files(
    searching: Corral, client: openai.OpenAI, tmp_path: Path
) -> None:
    """To a server without it: the assistant uses the new store, whose files can be searched. A
    second import does nothing."""
    file = client.files.create(file=("fox.txt", b"The fox is called Zorbo."), purpose="assistants")
    store = client.vector_stores.create(name="foxes", metadata={"k": "v"})
    attributes: dict[str, str | float | bool] = {"year": 2024}
    client.vector_stores.files.create(store.id, file_id=file.id, attributes=attributes)
    assistant = client.beta.assistants.create(
        model="demo-chat", tool_resources={"file_search": {"vector_store_ids": [store.id]}}
    )
    export = tmp_path / "all.jsonl"
    exported = corral(searching, "export", "assistants", export)
    rows = [line for line in export.read_text().splitlines() if store.id in line or file.id in line]
    export.write_text("\n".join(rows))
    client.beta.assistants.delete(assistant.id)
    client.vector_stores.delete(store.id)
    client.files.delete(file.id)
    rehearsed = corral(searching, "import", "assistants", export, "--dry-run")
    first, again = (corral(searching, "import", "assistants", export) for _ in range(2))
    ids = read_id_map(export)
    moved = client.beta.assistants.retrieve(ids[assistant.id])
    copy = client.vector_stores.retrieve(ids[store.id])
    read = client.vector_stores.files.poll(
        ids[f"{store.id}/{file.id}"], vector_store_id=copy.id, poll_interval_ms=50
    )

    assert exported.returncode == 0, exported.stderr
    counts = "1 assistants, 0 threads, 0 messages, 1 files, 1 vector stores\n"
    assert (rehearsed.stdout, first.stdout) == (f"would import {counts}", f"imported {counts}")
    assert again.stdout == f"imported {counts}".replace("1", "0"), again.stderr
    assert (copy.name, copy.metadata, read.attributes) == ("foxes", {"k": "v"}, attributes)
    assert moved.tool_resources is not None
    assert moved.tool_resources.file_search is not None
    assert moved.tool_resources.file_search.vector_store_ids == [copy.id]
    assert search(client, copy.id, "What is the fox called?") == ["fox.txt"]


def test_a_file_is_uploaded_and_polled(client: openai.OpenAI) -> None:
    """By the SDK's helpers, at the interval of the server."""
    options: Any = {
        "attributes": {"year": 2024, "draft": True, "by": "me"},
        "chunking_strategy": {
            "type": "static",
            "static": {"max_chunk_size_tokens": 700, "chunk_overlap_tokens": 300},
        },
    }
    store = client.vector_stores.create(expires_after={"anchor": "last_active_at", "days": 3})
    file = client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id,
        file=("long.txt", " ".join(f"word{n}" for n in range(900)).encode()),
        **options,
    )
    raw = client.vector_stores.files.with_raw_response.retrieve(file.id, vector_store_id=store.id)
    again = client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id, **options)
    older: Any = {"type": "lt", "key": "year", "value": 2024}
    filters: Any = {"type": "and", "filters": [{"type": "eq", "key": "by", "value": "me"}]}

    assert (file.status, file.attributes) == (
        "completed",
        {"year": 2024, "draft": True, "by": "me"},
    )
    assert "openai-poll-after-ms" not in raw.headers
    assert (again.id, again.created_at) == (file.id, file.created_at)
    assert store.expires_at == store.created_at + 3 * 24 * 3600
    assert search(client, store.id, ["word5", "word888"], filters=filters)[0] == "long.txt"
    assert search(client, store.id, "word5", filters=older) == []
    client.vector_stores.files.update(file.id, vector_store_id=store.id, attributes={"year": 2000})
    assert search(client, store.id, "word5", filters=older)
    client.vector_stores.files.delete(file.id, vector_store_id=store.id)
    assert search(client, store.id, "word5") == []
    assert client.vector_stores.delete(store.id).deleted


def bomb() -> bytes:
    """Return a Word document of some kilobytes that expands to gigabytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("word/document.xml", "w", force_zip64=True) as part:
            for _ in range(1100):
                part.write(b" " * (1 << 20))
        archive.writestr("[Content_Types].xml", CONTENT_TYPES)
        archive.writestr("_rels/.rels", RELATIONS)
    return packed.getvalue()


CONTENT_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override'
    ' PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument'
    '.wordprocessingml.document.main+xml"/></Types>'
)
RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="r" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships'
    '/officeDocument" Target="word/document.xml"/></Relationships>'
)


def test_files_that_cannot_be_parsed_have_an_error(client: openai.OpenAI) -> None:
    """With OpenAI's code and a message. The other files are processed."""
    store = client.vector_stores.create()
    hostile = {
        "latin.txt": (b"caf\xe9 " * 9, "invalid_file", "UTF-8"),
        "picture.png": (b"\x89PNG\r\n\x1a\n\x00\x00", "unsupported_file", "type is not supported"),
        "broken.pdf": (b"%PDF-1.7\nnothing of the kind", "invalid_file", "PDF"),
        "empty.txt": (b" \n ", "invalid_file", "no text"),
        "plain.zip": (make_zip(), "unsupported_file", "not a Word document"),
        "bomb.docx": (bomb(), "invalid_file", "memory"),
    }
    batch = client.vector_stores.file_batches.upload_and_poll(
        store.id, files=[(name, content) for name, (content, _, _) in hostile.items()]
    )
    names = {client.files.retrieve(each.id).filename: each for each in
             client.vector_stores.files.list(store.id)}  # fmt: skip

    assert (batch.status, batch.file_counts.failed) == ("failed", len(hostile))
    for name, (_, code, message) in hostile.items():
        error = names[name].last_error
        assert error is not None
        assert (error.code, message in error.message) == (code, True), (name, error)


def make_zip() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.txt", "a")
    return packed.getvalue()


def test_documents_are_parsed(client: openai.OpenAI) -> None:
    """A PDF and a Word document are found by their text."""
    store = client.vector_stores.create()
    batch = client.vector_stores.file_batches.upload_and_poll(
        store.id,
        files=[
            ("paper.pdf", pdf("Zebras are striped")),
            ("letter.docx", docx("Please pay the invoice.", "Total 12")),
        ],
    )

    assert batch.file_counts.completed == 2
    assert search(client, store.id, "zebras")[0] == "paper.pdf"
    assert search(client, store.id, "invoice")[0] == "letter.docx"


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("", {"expires_after": {"anchor": "created_at", "days": 1}}, 400, "expires_after.anchor"),
        ("", {"file_ids": ["file-none"]}, 404, "file_id"),
        ("/none/search", {"query": "x"}, 404, "vector_store_id"),
        ("/{id}/search", {}, 400, "query"),
        ("/{id}/search", {"query": 5}, 400, "query"),
        ("/{id}/search", {"query": "x", "rewrite_query": True}, 400, "rewrite_query"),
        ("/{id}/search", {"query": "x", "max_num_results": 51}, 400, "max_num_results"),
        ("/{id}/search", {"query": "x", "filters": {"type": "eq"}}, 400, "filters.key"),
        ("/{id}/search", {"query": "x", "filters": {"type": "xor"}}, 400, "filters.type"),
        ("/{id}/files", {"file_id": "x", "attributes": {"a": [1]}}, 400, "attributes.a"),
        (
            "/{id}/files",
            {"file_id": "x", "chunking_strategy": {"type": "static"}},
            400,
            "chunking_strategy.static",
        ),
        ("/{id}/file_batches", {}, 400, "files"),
        ("/{id}/files/none", {"attributes": {}}, 404, "file_id"),
        ("/{id}/files/none", {}, 400, "attributes"),
    ],
)
def test_errors_name_the_field(
    client: openai.OpenAI, library: str, path: str, body: object, status: int, param: str
) -> None:
    """In OpenAI's envelope, with the name of the request."""
    with pytest.raises(openai.APIStatusError) as refusal:
        client.post(f"/vector_stores{path.format(id=library)}", body=body, cast_to=object)

    assert (refusal.value.status_code, refusal.value.param) == (status, param)


def test_a_missing_embedding_model_is_reported_with_a_remedy(up: Corral) -> None:
    """With status 400."""
    with openai.OpenAI(base_url=up.api, api_key="unused", max_retries=0) as client:
        store = client.vector_stores.create()
        with pytest.raises(openai.BadRequestError) as refusal:
            client.vector_stores.search(store.id, query="x")

    assert refusal.value.code == "embedding_model_missing"
    assert "corral up --embedding-model" in refusal.value.message


def test_ingestion_survives_kills(searching: Corral, client: openai.OpenAI) -> None:
    """Of the engine and the control service: the file is ingested completely and once."""
    store = client.vector_stores.create()
    text = "\n\n".join(f"Chapter {n}. The number {n} is nice. " * 12 for n in range(60))
    file = client.files.create(file=("book.txt", text.encode()), purpose="assistants")
    client.vector_stores.files.create(store.id, file_id=file.id)
    polled: list[Any] = []
    waiting = threading.Thread(
        target=lambda: polled.append(
            client.vector_stores.files.poll(file.id, vector_store_id=store.id)
        )
    )
    waiting.start()
    kill_process(searching, ENGINE)
    kill_process(searching, CONTROL)
    waiting.join()
    texts = [each.text for each in client.vector_stores.files.content(
        file.id, vector_store_id=store.id)]  # fmt: skip

    assert polled[0].status == "completed"
    assert client.vector_stores.retrieve(store.id).file_counts.completed == 1
    assert len(texts) == len(set(texts)) > 1
    assert search(client, store.id, "Chapter 41", max_num_results=50)


# --- all-MiniLM-L6-v2 -----------------------------------------------------------------------------

# Cosine similarities in the documentation of sentence-transformers for this model.
PUBLISHED = [
    ("The weather is lovely today.", "It's so sunny outside!", 0.6660),
    ("The weather is lovely today.", "He drove to the stadium.", 0.1046),
    ("It's so sunny outside!", "He drove to the stadium.", 0.1411),
    ("The cat sits outside", "The dog plays in the garden", 0.2838),
    ("A man is playing guitar", "A woman watches TV", -0.0327),
    ("The new movie is awesome", "The new movie is so great", 0.8939),
]
LONGEST = 512


def embed(
    client: openai.OpenAI, texts: list[str]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    answer = client.embeddings.create(model=ENCODER, input=texts)
    return np.array([each.embedding for each in answer.data])


def test_similarities_are_the_published_ones(client: openai.OpenAI) -> None:
    """Tokenizer, network, mean pooling and normalization, to three decimals."""
    first = embed(client, [pair[0] for pair in PUBLISHED])
    second = embed(client, [pair[1] for pair in PUBLISHED])

    assert first.shape == (6, 384)
    assert (first * second).sum(axis=1) == pytest.approx([p[2] for p in PUBLISHED], abs=1e-3)


def test_the_longest_input_matches_the_reference_implementation(client: openai.OpenAI) -> None:
    """512 tokens in one decode call, compared with numpy. A longer input is refused."""
    ids = [101, *(2000 + 7 * number for number in range(LONGEST - 2)), 102]
    answer = client.embeddings.create(model=ENCODER, input=[ids])
    with pytest.raises(openai.BadRequestError) as refusal:
        client.embeddings.create(model=ENCODER, input=[[*ids, 102]])
    expected = load_minilm().embedding(ids)

    assert np.abs(np.array(answer.data[0].embedding) - expected).max() < 2e-3
    assert answer.usage.prompt_tokens == LONGEST
    assert refusal.value.code == "context_length_exceeded"
    assert "512" in refusal.value.message
    assert "513" in refusal.value.message


def test_hundreds_of_texts_keep_their_order(client: openai.OpenAI) -> None:
    """Each vector equals that of a single input."""
    texts = [f"Note number {number} is about topic {number % 7}." for number in range(200)]
    together = embed(client, texts)
    single = embed(client, [texts[137]])

    assert together.shape == (200, 384)
    assert float((together[137] * single[0]).sum()) > 0.999
