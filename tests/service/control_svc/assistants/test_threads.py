"""Assistants, threads and messages over gRPC, on both databases."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import (
    assistant_pb2,
    assistant_service_pb2,
    item_pb2,
    listing_pb2,
    message_pb2,
    message_service_pb2,
    run_service_pb2,
    thread_service_pb2,
    tool_pb2,
    vector_store_service_pb2,
)
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from corral.control.v1.vector_store_service_pb2_grpc import VectorStoreServiceStub
from corral.inference.v1 import generation_pb2, sampling_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svc_kit.errors import (
    AssistantNotFound,
    DomainError,
    EmbeddingModelMissing,
    FileNotFound,
    InvalidField,
    MessageNotFound,
    MissingField,
    RequestIdReused,
    StaleGeneration,
    TooLong,
    UnsupportedField,
    UnsupportedValue,
    VectorStoreNotFound,
)
from tests.support.control import RunningControl, a_control
from tests.support.examples import examples
from tests.support.threads import ThreadClient, saying, text_of

UNSPECIFIED = message_pb2.ATTACHMENT_TOOL_UNSPECIFIED
FILE_SEARCH = message_pb2.ATTACHMENT_TOOL_FILE_SEARCH
OLDEST, NEWEST = listing_pb2.LIST_ORDER_OLDEST_FIRST, listing_pb2.LIST_ORDER_NEWEST_FIRST
SAMPLING = sampling_pb2.SamplingParams(temperature=0.5, top_k=3)


@pytest.fixture
def client(running: RunningControl) -> ThreadClient:
    """A caller."""
    return ThreadClient(running.client)


# ---- assistants


async def test_an_update_takes_what_its_mask_names(client: ThreadClient) -> None:
    """A nested path changes one option; a named field that is unset is cleared; others stay."""
    options = generation_pb2.GenerationOptions(sampling=SAMPLING)
    made = await client.new_assistant(name="Ada", options=options, metadata={"k": "v"})
    cooler = generation_pb2.GenerationOptions(
        sampling=sampling_pb2.SamplingParams(temperature=0.25)
    )

    changed = await client.change_assistant(
        made.id, "options.sampling.temperature", "name", options=cooler
    )
    again = await client.change_assistant(made.id, "options.sampling.temperature")
    whole = await client.change_assistant(made.id, "*", model="other")

    assert (changed.options.sampling.temperature, changed.options.sampling.top_k) == (0.25, 3)
    assert (changed.name, dict(changed.metadata)) == ("", {"k": "v"})
    assert not again.options.sampling.HasField("temperature")
    assert again.options.sampling.top_k == 3
    assert whole == assistant_pb2.Assistant(
        id=made.id, create_time=made.create_time, etag=whole.etag, model="other"
    )


async def test_an_update_without_a_mask_takes_what_is_set(client: ThreadClient) -> None:
    """As AIP-134 says."""
    made = await client.new_assistant(name="Ada", description="d")

    changed = await client.change_assistant(made.id, name="Bob")

    assert (changed.name, changed.description, changed.model) == ("Bob", "d", "demo")


async def test_an_update_by_an_old_etag_is_refused(client: ThreadClient) -> None:
    """Of two who edit what they have read, the second hears that it is stale."""
    made = await client.new_assistant(name="Ada")
    await client.change_assistant(made.id, name="Bob", etag=made.etag)

    with pytest.raises(StaleGeneration):
        await client.change_assistant(made.id, name="Cid", etag=made.etag)
    assert (await client.get_assistant(made.id)).name == "Bob"


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({"model": ""}, MissingField, "model"),
        ({"name": "x" * 257}, TooLong, "name"),
        ({"description": "x" * 513}, TooLong, "description"),
        ({"instructions": "x" * 256_001}, TooLong, "instructions"),
        ({"reasoning_effort": "huge"}, UnsupportedValue, "reasoning_effort"),
        ({"tools": [tool_pb2.Tool()]}, MissingField, "tools[0]"),
        (
            {"tools": [tool_pb2.Tool(custom=tool_pb2.CustomTool(name="c"))]},
            UnsupportedValue,
            "tools[0].type",
        ),
        (
            {"tools": [tool_pb2.Tool(function=tool_pb2.FunctionTool(name="a b"))]},
            InvalidField,
            "tools[0].function.name",
        ),
        (
            {"tools": [tool_pb2.Tool(function=tool_pb2.FunctionTool(name="f"))] * 2},
            InvalidField,
            "tools[1]",
        ),
        (
            {"tool_resources": tool_pb2.ToolResources(vector_store_ids=["a", "b"])},
            TooLong,
            "tool_resources.file_search.vector_store_ids",
        ),
        (
            {"options": generation_pb2.GenerationOptions(num_choices=2)},
            UnsupportedField,
            "options.num_choices",
        ),
        (
            {
                "options": generation_pb2.GenerationOptions(
                    cache=generation_pb2.CacheOptions(keep_for="thread_of_another")
                )
            },
            UnsupportedField,
            "options.cache.keep_for",
        ),
        ({"metadata": {"k" * 65: ""}}, TooLong, "metadata"),
    ],
)
async def test_what_an_assistant_cannot_be_is_refused(
    client: ThreadClient, fields: dict[str, Any], error: type[DomainError], field: str
) -> None:
    """By a typed error that names the field, before anything is kept."""
    with pytest.raises(error) as refused:
        await client.new_assistant(**fields)
    listed = await client.ask(
        client.assistants.ListAssistants, assistant_service_pb2.ListAssistantsRequest()
    )

    assert refused.value.field == field
    assert not listed.assistants


@pytest.mark.parametrize("path", ["id", "etag", "nothing", "tools.function", "metadata.k"])
async def test_a_mask_of_what_cannot_be_changed_is_refused(client: ThreadClient, path: str) -> None:
    """Also parts of lists and maps, which are changed as a whole."""
    made = await client.new_assistant()

    with pytest.raises(InvalidField, match="update_mask"):
        await client.change_assistant(made.id, path, name="x")


# ---- a request that is sent twice


async def test_a_request_that_is_sent_twice_makes_one_object(client: ThreadClient) -> None:
    """Of each kind, also when both come at the same moment; another content is refused."""
    thread = await client.new_thread()
    assistants = await asyncio.gather(
        *(client.new_assistant("one", name="Ada", metadata={"a": "1", "b": "2"}) for _ in "12")
    )
    threads = await asyncio.gather(
        *(client.new_thread(saying("hi"), request_id="one") for _ in "12")
    )
    messages = await asyncio.gather(*(client.say(thread.id, "hi", request_id="one") for _ in "12"))

    for made in (assistants, threads, messages):
        assert made[0] == made[1]
    assert len((await client.page(thread.id)).messages) == 1
    for again in (
        client.new_assistant("one", name="Bob"),
        client.new_thread(request_id="one"),
        client.say(thread.id, "other", request_id="one"),
    ):
        with pytest.raises(RequestIdReused):
            await again


# ---- threads and messages


async def test_a_thread_begins_with_its_messages(client: ThreadClient) -> None:
    """In order, each with what only the thread's view has."""
    file = await client.client.create()
    attached = message_pb2.Attachment(file_id=file.id)
    thread = await client.new_thread(
        saying("one", metadata={"k": "v"}),
        saying("two", role=item_pb2.ITEM_ROLE_ASSISTANT, attachments=[attached]),
    )
    found = (await client.page(thread.id, order=OLDEST)).messages

    assert [text_of(message) for message in found] == ["one", "two"]
    assert dict(found[0].metadata) == {"k": "v"}
    assert list(found[1].attachments) == [attached]
    assert all(message.state == message_pb2.Message.STATE_COMPLETED for message in found)


async def test_what_only_the_server_says_of_a_text_is_not_taken(client: ThreadClient) -> None:
    """A caller's citation or probability would be taken for the server's."""
    text = item_pb2.TextPart(text="hi", citations=[item_pb2.FileCitation(file_id="file-1")])
    thread = await client.new_thread(saying("", parts=[item_pb2.ItemPart(text=text)]))
    (found,) = (await client.page(thread.id)).messages

    assert list(found.parts) == [item_pb2.ItemPart(text=item_pb2.TextPart(text="hi"))]


@pytest.mark.parametrize(
    ("message", "error", "field"),
    [
        (saying(""), MissingField, "content[0].text"),
        (saying("", parts=[]), MissingField, "content"),
        (saying("x", role=item_pb2.ITEM_ROLE_SYSTEM), UnsupportedValue, "role"),
        (saying("x", role=0), MissingField, "role"),
        (saying("x" * 1_048_577), TooLong, "content"),
        (
            saying("", parts=[item_pb2.ItemPart(refusal="no")]),
            UnsupportedValue,
            "content[0].type",
        ),
        (
            saying("", parts=[item_pb2.ItemPart(image=item_pb2.ImagePart())]),
            InvalidField,
            "content[0]",
        ),
        (
            saying("", parts=[item_pb2.ItemPart(image=item_pb2.ImagePart(file_id="file-0"))]),
            FileNotFound,
            "content[0].image_file.file_id",
        ),
        (
            saying("x", attachments=[message_pb2.Attachment(file_id="file-0")]),
            FileNotFound,
            "attachments[0].file_id",
        ),
        (
            saying(
                "x", attachments=[message_pb2.Attachment(file_id="file-0", tools=[UNSPECIFIED])]
            ),
            InvalidField,
            "attachments[0].tools[0]",
        ),
    ],
)
async def test_what_a_message_cannot_be_is_refused(
    client: ThreadClient, message: message_pb2.NewMessage, error: type[DomainError], field: str
) -> None:
    """By itself and with a new thread, of which then nothing is kept."""
    thread = await client.new_thread()
    request = message_service_pb2.CreateMessageRequest(thread_id=thread.id, message=message)
    with pytest.raises(error) as refused:
        await client.ask(client.messages.CreateMessage, request)
    with pytest.raises(error) as with_thread:
        await client.new_thread(saying("good"), message)
    threads = await client.ask(client.threads.ListThreads, thread_service_pb2.ListThreadsRequest())

    assert refused.value.field == field
    assert with_thread.value.field == f"messages[1].{field}"
    assert [each.id for each in threads.threads] == [thread.id]


async def test_a_message_belongs_to_its_thread(client: ThreadClient) -> None:
    """A message of another thread is not found, nor is anything of a thread that is gone."""
    thread, other = await client.new_thread(saying("hi")), await client.new_thread()
    (message,) = (await client.page(thread.id)).messages
    request = message_service_pb2.GetMessageRequest(thread_id=other.id, message_id=message.id)

    with pytest.raises(MessageNotFound):
        await client.ask(client.messages.GetMessage, request)
    with pytest.raises(MessageNotFound):
        await client.delete_message(other.id, message.id)
    with pytest.raises(AssistantNotFound):
        await client.get_assistant("asst_x")


# ---- lists


def expected(texts: Sequence[str], gone: set[str], order: int, **cursor: str) -> list[str]:
    """The rest of a plain list beyond a cursor, or all that is before it."""
    listed = list(texts) if order == OLDEST else list(reversed(texts))
    if cursor.get("after"):
        listed = listed[listed.index(cursor["after"]) + 1 :]
    if cursor.get("before"):
        listed = listed[: listed.index(cursor["before"])]
    return [text for text in listed if text not in gone]


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(count=st.integers(1, 6), data=st.data())
async def test_messages_are_listed_as_a_plain_list_would_be(
    client: ThreadClient, count: int, data: st.DataObject
) -> None:
    """For every cursor, order and limit, also from messages that have been deleted since."""
    texts = [str(number) for number in range(count)]
    thread = await client.new_thread(*map(saying, texts))
    page = await client.page(thread.id, order=OLDEST, page_size=100)
    ids = {text_of(message): message.id for message in page.messages}
    gone = data.draw(st.sets(st.sampled_from(texts)))
    for text in gone:
        await client.delete_message(thread.id, ids[text])

    limit = data.draw(st.integers(1, 4))
    for order, text in product((OLDEST, NEWEST), texts):
        after = await client.page(thread.id, order=order, after=ids[text], page_size=limit)
        before = await client.page(thread.id, order=order, before=ids[text], page_size=limit)
        beyond = expected(texts, gone, order, after=text)
        ahead = expected(texts, gone, order, before=text)

        assert [text_of(each) for each in after.messages] == beyond[:limit]
        assert bool(after.next_page_token) == (len(beyond) > limit)
        assert [text_of(each) for each in before.messages] == ahead[-limit:]


async def test_assistants_and_threads_are_listed_in_both_directions(
    client: ThreadClient,
) -> None:
    """By tokens to the end, and by the cursors of OpenAI's lists."""
    assistants = [(await client.new_assistant()).id for _ in range(5)]
    threads = [(await client.new_thread()).id for _ in range(5)]
    for ids, method, request, field in (
        (
            assistants,
            client.assistants.ListAssistants,
            assistant_service_pb2.ListAssistantsRequest,
            "assistants",
        ),
        (threads, client.threads.ListThreads, thread_service_pb2.ListThreadsRequest, "threads"),
    ):
        found, token = list[str](), ""
        while True:
            page: Any = await client.ask(
                method, request(page_size=2, page_token=token, order=OLDEST)
            )
            found += [each.id for each in getattr(page, field)]
            token = page.next_page_token
            if not token:
                break
        before = await client.ask(method, request(page_size=2, before=ids[3], order=OLDEST))
        newest = await client.ask(method, request(after=ids[2]))

        assert found == ids
        assert [each.id for each in getattr(before, field)] == ids[1:3]
        assert [each.id for each in getattr(newest, field)] == [ids[1], ids[0]]


@pytest.mark.parametrize("cursor", ["after", "before"])
async def test_a_cursor_of_another_kind_is_refused(client: ThreadClient, cursor: str) -> None:
    """An id of a thread says nothing about a place among messages."""
    thread = await client.new_thread()

    with pytest.raises(InvalidField, match=cursor):
        await client.page(thread.id, **{cursor: thread.id})


# ---- files that are searched


@pytest.fixture
async def meaningless(tmp_path: Path, database_url: str | None) -> AsyncIterator[ThreadClient]:
    """A caller of a service that has no embedding model."""
    async with a_control(tmp_path, database_url) as control:
        yield ThreadClient(control.client)


async def test_attached_files_go_into_a_store_of_the_thread(client: ThreadClient) -> None:
    """The first one makes the store, for a week; later ones go there, too."""
    one, two = [await client.client.create(filename=name) for name in ("a.txt", "b.txt")]
    attached = [message_pb2.Attachment(file_id=one.id, tools=[FILE_SEARCH])]
    thread = await client.new_thread(saying("x", attachments=attached))
    attached = [message_pb2.Attachment(file_id=two.id, tools=[FILE_SEARCH])]
    await client.say(thread.id, "y", attachments=attached)
    later = await client.get_thread(thread.id)
    (store_id,) = thread.tool_resources.vector_store_ids
    stores = VectorStoreServiceStub(client.client.channel)
    request = vector_store_service_pb2.GetVectorStoreRequest(vector_store_id=store_id)
    store = (await client.ask(stores.GetVectorStore, request)).vector_store

    assert list(later.tool_resources.vector_store_ids) == [store_id]
    assert store.file_counts.total == 2
    assert store.expire_after_days == 7


async def test_without_an_embedding_model_nothing_is_attached_for_search(
    meaningless: ThreadClient,
) -> None:
    """Refused with the command that adds one, before anything is kept; a file that no tool gets is
    no matter of search."""
    file = await meaningless.client.create()
    thread = await meaningless.new_thread()
    attached = [message_pb2.Attachment(file_id=file.id, tools=[FILE_SEARCH])]

    with pytest.raises(EmbeddingModelMissing, match="--embedding-model"):
        await meaningless.say(thread.id, "x", attachments=attached)
    assert not (await meaningless.page(thread.id)).messages
    await meaningless.say(thread.id, "x", attachments=[message_pb2.Attachment(file_id=file.id)])


async def test_a_store_that_nobody_has_is_refused(client: ThreadClient) -> None:
    """For assistants and threads, when they are made and when they are changed."""
    nowhere = tool_pb2.ToolResources(vector_store_ids=["vs_nowhere"])
    assistant = await client.new_assistant()

    for forbidden in (
        client.new_assistant(tool_resources=nowhere),
        client.new_thread(tool_resources=nowhere),
        client.change_assistant(assistant.id, tool_resources=nowhere),
    ):
        with pytest.raises(VectorStoreNotFound) as refused:
            await forbidden
        assert refused.value.field == "tool_resources.file_search.vector_store_ids"


async def test_a_store_is_made_with_an_assistant_or_a_thread(client: ThreadClient) -> None:
    """All in one transaction: of what is refused there is no store either."""
    file = await client.client.create()
    new = vector_store_service_pb2.CreateVectorStoreRequest(name="notes", file_ids=[file.id])
    lost = vector_store_service_pb2.CreateVectorStoreRequest(file_ids=["file-0"])
    named = tool_pb2.ToolResources(vector_store_ids=["vs_x"])
    make_assistant, make_thread = client.assistants.CreateAssistant, client.threads.CreateThread
    model = assistant_pb2.Assistant(model="demo")

    def an_assistant(**fields: Any) -> Any:
        return assistant_service_pb2.CreateAssistantRequest(assistant=model, **fields)

    made = (await client.ask(make_assistant, an_assistant(new_vector_stores=[new]))).assistant
    request = thread_service_pb2.CreateThreadRequest(new_vector_stores=[new])
    thread = (await client.ask(make_thread, request)).thread
    with pytest.raises(TooLong, match="vector_stores"):
        await client.ask(make_assistant, an_assistant(new_vector_stores=[new, new]))
    model.tool_resources.CopyFrom(named)
    with pytest.raises(TooLong, match="vector_stores"):
        await client.ask(make_assistant, an_assistant(new_vector_stores=[new]))
    request = thread_service_pb2.CreateThreadRequest(new_vector_stores=[lost])
    with pytest.raises(FileNotFound, match="file-0"):
        await client.ask(make_thread, request)
    runs = RunServiceStub(client.client.channel)
    options = run_service_pb2.RunOptions(assistant_id=made.id)
    asked = run_service_pb2.CreateThreadAndRunRequest(run=options, new_vector_stores=[lost])
    with pytest.raises(FileNotFound) as refused:
        await client.ask(runs.CreateThreadAndRun, asked)
    asked.new_vector_stores[0].CopyFrom(new)
    run = (await client.ask(runs.CreateThreadAndRun, asked)).run
    get = thread_service_pb2.GetThreadRequest(thread_id=run.thread_id)
    of_run = (await client.ask(client.threads.GetThread, get)).thread
    stores = VectorStoreServiceStub(client.client.channel)
    listed = await client.ask(
        stores.ListVectorStores, vector_store_service_pb2.ListVectorStoresRequest()
    )

    assert refused.value.field == "thread.tool_resources.file_search.vector_stores[0].file_ids"
    ids = [each.tool_resources.vector_store_ids[0] for each in (of_run, thread, made)]
    assert [store.id for store in listed.vector_stores] == ids
    assert [store.file_counts.total for store in listed.vector_stores] == [1, 1, 1]
