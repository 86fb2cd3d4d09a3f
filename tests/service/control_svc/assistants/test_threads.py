"""Assistants, threads and messages over gRPC, on both databases."""

from collections.abc import AsyncIterator
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
    thread_pb2,
    thread_service_pb2,
    tool_pb2,
    vector_store_service_pb2,
)
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from corral.control.v1.vector_store_service_pb2_grpc import VectorStoreServiceStub
from corral.inference.v1 import generation_pb2, sampling_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svc_kit import errors
from tests.support.control import RunningControl, run_control
from tests.support.examples import UNRELIABLE_CHECKS, examples
from tests.support.threads import ThreadClient, make_new_message, message_text

UNSPECIFIED = message_pb2.ATTACHMENT_TOOL_UNSPECIFIED
FILE_SEARCH = message_pb2.ATTACHMENT_TOOL_FILE_SEARCH
OLDEST, NEWEST = listing_pb2.LIST_ORDER_OLDEST_FIRST, listing_pb2.LIST_ORDER_NEWEST_FIRST
SAMPLING = sampling_pb2.SamplingParams(temperature=0.5, top_k=3)


@pytest.fixture
def client(running: RunningControl) -> ThreadClient:
    return ThreadClient(running.client)


# ---- assistants


async def test_an_update_changes_the_fields_of_its_mask(client: ThreadClient) -> None:
    """A nested path changes one option; an unset field is cleared; other fields stay."""
    options = generation_pb2.GenerationOptions(sampling=SAMPLING)
    created = await client.create_assistant(name="Ada", options=options, metadata={"k": "v"})
    path = "options.sampling.temperature"
    colder = generation_pb2.GenerationOptions(
        sampling=sampling_pb2.SamplingParams(temperature=0.25)
    )

    changed = await client.update_assistant(created.id, path, "name", options=colder)
    cleared = await client.update_assistant(created.id, path)
    replaced = await client.update_assistant(created.id, "*", model="other")

    assert (changed.options.sampling.temperature, changed.options.sampling.top_k) == (0.25, 3)
    assert (changed.name, dict(changed.metadata)) == ("", {"k": "v"})
    assert cleared.options.sampling == sampling_pb2.SamplingParams(top_k=3)
    assert replaced == assistant_pb2.Assistant(
        id=created.id, create_time=created.create_time, etag=replaced.etag, model="other"
    )


async def test_an_update_with_an_old_etag_is_refused(client: ThreadClient) -> None:
    """The second of two concurrent updates fails."""
    created = await client.create_assistant(name="Ada")
    await client.update_assistant(created.id, name="Bob", etag=created.etag)

    with pytest.raises(errors.StaleGeneration):
        await client.update_assistant(created.id, name="Cid", etag=created.etag)
    assert (await client.get_assistant(created.id)).name == "Bob"


INVALID_ASSISTANTS: list[tuple[dict[str, Any], type[errors.DomainError], str]] = [
    ({"model": ""}, errors.MissingField, "model"),
    ({"name": "x" * 257}, errors.TooLong, "name"),
    ({"description": "x" * 513}, errors.TooLong, "description"),
    ({"instructions": "x" * 256_001}, errors.TooLong, "instructions"),
    ({"reasoning_effort": "huge"}, errors.UnsupportedValue, "reasoning_effort"),
    ({"tools": [tool_pb2.Tool()]}, errors.MissingField, "tools[0]"),
    ({"tools": [{"custom": {"name": "c"}}]}, errors.UnsupportedValue, "tools[0].type"),
    ({"tools": [{"function": {"name": "a b"}}]}, errors.InvalidField, "tools[0].function.name"),
    ({"tools": [{"function": {"name": "f"}}] * 2}, errors.InvalidField, "tools[1]"),
    (
        {"tool_resources": {"vector_store_ids": ["a", "b"]}},
        errors.TooLong,
        "tool_resources.file_search.vector_store_ids",
    ),
    ({"options": {"num_choices": 2}}, errors.UnsupportedField, "options.num_choices"),
    (
        {"options": {"cache": {"keep_for": "thread_of_another"}}},
        errors.UnsupportedField,
        "options.cache.keep_for",
    ),
    ({"metadata": {"k" * 65: ""}}, errors.TooLong, "metadata"),
]


async def test_an_invalid_assistant_is_refused(
    client: ThreadClient, subtests: pytest.Subtests
) -> None:
    """The error names the field, and nothing is created."""
    for fields, error, field in INVALID_ASSISTANTS:
        with subtests.test(fields=fields):
            with pytest.raises(error) as refused:
                await client.create_assistant(**fields)
            assert refused.value.field == field
    listed = await client.call(
        client.assistants.ListAssistants, assistant_service_pb2.ListAssistantsRequest()
    )
    assert not listed.assistants


# ---- idempotency


# ---- threads and messages


async def test_a_thread_is_created_with_messages(client: ThreadClient) -> None:
    file = await client.client.create()
    attached = message_pb2.Attachment(file_id=file.id)
    thread = await client.create_thread(
        make_new_message("one", metadata={"k": "v"}),
        make_new_message("two", role=item_pb2.ITEM_ROLE_ASSISTANT, attachments=[attached]),
    )
    messages = (await client.page(thread.id, order=OLDEST)).messages

    assert [message_text(message) for message in messages] == ["one", "two"]
    assert dict(messages[0].metadata) == {"k": "v"}
    assert list(messages[1].attachments) == [attached]
    assert all(message.state == message_pb2.Message.STATE_COMPLETED for message in messages)


async def test_server_fields_of_text_are_ignored(client: ThreadClient) -> None:
    """A caller cannot add citations or log probabilities."""
    text = item_pb2.TextPart(text="hi", citations=[item_pb2.FileCitation(file_id="file-1")])
    thread = await client.create_thread(make_new_message("", parts=[item_pb2.ItemPart(text=text)]))
    (message,) = (await client.page(thread.id)).messages

    assert list(message.parts) == [item_pb2.ItemPart(text=item_pb2.TextPart(text="hi"))]


INVALID_MESSAGES: list[tuple[message_pb2.NewMessage, type[errors.DomainError], str]] = [
    (make_new_message(""), errors.MissingField, "content[0].text"),
    (make_new_message("", parts=[]), errors.MissingField, "content"),
    (make_new_message("x", role=item_pb2.ITEM_ROLE_SYSTEM), errors.UnsupportedValue, "role"),
    (make_new_message("x", role=0), errors.MissingField, "role"),
    (make_new_message("x" * 1_048_577), errors.TooLong, "content"),
    (
        make_new_message("", parts=[item_pb2.ItemPart(refusal="no")]),
        errors.UnsupportedValue,
        "content[0].type",
    ),
    (
        make_new_message("", parts=[item_pb2.ItemPart(image=item_pb2.ImagePart())]),
        errors.InvalidField,
        "content[0]",
    ),
    (
        make_new_message("", parts=[item_pb2.ItemPart(image=item_pb2.ImagePart(file_id="file-0"))]),
        errors.FileNotFound,
        "content[0].image_file.file_id",
    ),
    (
        make_new_message("x", attachments=[message_pb2.Attachment(file_id="file-0")]),
        errors.FileNotFound,
        "attachments[0].file_id",
    ),
    (
        make_new_message(
            "x", attachments=[message_pb2.Attachment(file_id="file-0", tools=[UNSPECIFIED])]
        ),
        errors.MissingField,
        "attachments[0].tools[0]",
    ),
]


async def test_an_invalid_message_is_refused(
    client: ThreadClient, subtests: pytest.Subtests
) -> None:
    """Alone and with a new thread, which is not created."""
    thread = await client.create_thread()
    for message, error, field in INVALID_MESSAGES:
        request = message_service_pb2.CreateMessageRequest(thread_id=thread.id, message=message)
        with subtests.test(field=field, error=error):
            with pytest.raises(error) as refused:
                await client.call(client.messages.CreateMessage, request)
            with pytest.raises(error) as with_thread:
                await client.create_thread(make_new_message("good"), message)
            assert refused.value.field == field
            assert with_thread.value.field == f"messages[1].{field}"
    threads = await client.call(client.threads.ListThreads, thread_service_pb2.ListThreadsRequest())
    assert [each.id for each in threads.threads] == [thread.id]
    assert not (await client.page(thread.id)).messages


async def test_a_message_of_another_thread_is_not_found(client: ThreadClient) -> None:
    """It cannot be read or deleted; neither can an assistant with a malformed id."""
    thread, other = await client.create_thread(make_new_message("hi")), await client.create_thread()
    (message,) = (await client.page(thread.id)).messages
    request = message_service_pb2.GetMessageRequest(thread_id=other.id, message_id=message.id)

    with pytest.raises(errors.MessageNotFound):
        await client.call(client.messages.GetMessage, request)
    with pytest.raises(errors.MessageNotFound):
        await client.delete_message(other.id, message.id)
    with pytest.raises(errors.AssistantNotFound):
        await client.get_assistant("asst_x")


# ---- lists


@settings(
    max_examples=examples(6),
    deadline=None,
    suppress_health_check=[*UNRELIABLE_CHECKS, HealthCheck.function_scoped_fixture],
)
@given(count=st.integers(1, 6), data=st.data())
async def test_message_pages_equal_slices_of_a_list(
    client: ThreadClient, count: int, data: st.DataObject
) -> None:
    """For every cursor, order and limit; the cursor message may be deleted."""
    texts = [str(number) for number in range(count)]
    thread = await client.create_thread(*map(make_new_message, texts))
    page = await client.page(thread.id, order=OLDEST, page_size=100)
    ids = {message_text(message): message.id for message in page.messages}
    deleted = data.draw(st.sets(st.sampled_from(texts)))
    for text in deleted:
        await client.delete_message(thread.id, ids[text])

    limit = data.draw(st.integers(1, 4))
    for order, text in product((OLDEST, NEWEST), texts):
        ordered = texts if order == OLDEST else texts[::-1]
        index = ordered.index(text)
        later = [each for each in ordered[index + 1 :] if each not in deleted]
        earlier = [each for each in ordered[:index] if each not in deleted]
        after = await client.page(thread.id, order=order, after=ids[text], page_size=limit)
        before = await client.page(thread.id, order=order, before=ids[text], page_size=limit)

        assert [message_text(each) for each in after.messages] == later[:limit]
        assert bool(after.next_page_token) == (len(later) > limit)
        assert [message_text(each) for each in before.messages] == earlier[-limit:]


async def test_assistants_and_threads_are_listed_in_both_directions(
    client: ThreadClient,
) -> None:
    """By page tokens, and by the cursors of OpenAI's lists."""
    assistants = [(await client.create_assistant()).id for _ in range(5)]
    threads = [(await client.create_thread()).id for _ in range(5)]
    for ids, method, request, field in (
        (
            assistants,
            client.assistants.ListAssistants,
            assistant_service_pb2.ListAssistantsRequest,
            "assistants",
        ),
        (threads, client.threads.ListThreads, thread_service_pb2.ListThreadsRequest, "threads"),
    ):
        listed, token = list[str](), ""
        while True:
            page: Any = await client.call(
                method, request(page_size=2, page_token=token, order=OLDEST)
            )
            listed += [each.id for each in getattr(page, field)]
            token = page.next_page_token
            if not token:
                break
        before = await client.call(method, request(page_size=2, before=ids[3], order=OLDEST))
        newest = await client.call(method, request(after=ids[2]))

        assert listed == ids
        assert [each.id for each in getattr(before, field)] == ids[1:3]
        assert [each.id for each in getattr(newest, field)] == [ids[1], ids[0]]


async def test_a_cursor_of_another_kind_is_refused(client: ThreadClient) -> None:
    """The id of a thread is not a position among messages."""
    thread = await client.create_thread()

    for cursor in ("after", "before"):
        with pytest.raises(errors.InvalidField, match=cursor):
            await client.page(thread.id, **{cursor: thread.id})


# ---- file search


@pytest.fixture
async def client_without_embeddings(
    tmp_path: Path, database_url: str | None
) -> AsyncIterator[ThreadClient]:
    async with run_control(tmp_path, database_url) as control:
        yield ThreadClient(control.client)


async def test_attached_files_are_added_to_the_store_of_the_thread(client: ThreadClient) -> None:
    """The first one creates the store, which expires after a week; later ones join it."""
    one, two = [await client.client.create(filename=name) for name in ("a.txt", "b.txt")]
    attached = [message_pb2.Attachment(file_id=one.id, tools=[FILE_SEARCH])]
    thread = await client.create_thread(make_new_message("x", attachments=attached))
    attached = [message_pb2.Attachment(file_id=two.id, tools=[FILE_SEARCH])]
    await client.add_message(thread.id, "y", attachments=attached)
    later = await client.get_thread(thread.id)
    (store_id,) = thread.tool_resources.vector_store_ids
    stores = VectorStoreServiceStub(client.client.channel)
    request = vector_store_service_pb2.GetVectorStoreRequest(vector_store_id=store_id)
    store = (await client.call(stores.GetVectorStore, request)).vector_store

    assert list(later.tool_resources.vector_store_ids) == [store_id]
    assert store.file_counts.total == 2
    assert store.expire_after_days == 7


async def test_file_search_needs_an_embedding_model(
    client_without_embeddings: ThreadClient,
) -> None:
    """The error names the option that adds one. A file without tools can be attached."""
    client = client_without_embeddings
    file = await client.client.create()
    thread = await client.create_thread()
    attached = [message_pb2.Attachment(file_id=file.id, tools=[FILE_SEARCH])]

    with pytest.raises(errors.EmbeddingModelMissing, match="--embedding-model"):
        await client.add_message(thread.id, "x", attachments=attached)
    assert not (await client.page(thread.id)).messages
    await client.add_message(thread.id, "x", attachments=[message_pb2.Attachment(file_id=file.id)])


async def test_an_unknown_store_is_refused(client: ThreadClient) -> None:
    unknown = tool_pb2.ToolResources(vector_store_ids=["vs_nowhere"])
    assistant = await client.create_assistant()

    for forbidden in (
        client.create_assistant(tool_resources=unknown),
        client.create_thread(tool_resources=unknown),
        client.update_assistant(assistant.id, tool_resources=unknown),
    ):
        with pytest.raises(errors.VectorStoreNotFound) as refused:
            await forbidden
        assert refused.value.field == "tool_resources.file_search.vector_store_ids"


async def test_a_store_is_created_with_an_assistant_or_a_thread(client: ThreadClient) -> None:
    """In the same transaction: a refused request creates no store."""
    file = await client.client.create()
    new = vector_store_service_pb2.CreateVectorStoreRequest(name="notes", file_ids=[file.id])
    invalid = vector_store_service_pb2.CreateVectorStoreRequest(file_ids=["file-0"])

    async def create_assistant(*stores: Any, **fields: Any) -> assistant_pb2.Assistant:
        request = assistant_service_pb2.CreateAssistantRequest(
            assistant=assistant_pb2.Assistant(model="demo", **fields), new_vector_stores=stores
        )
        return (await client.call(client.assistants.CreateAssistant, request)).assistant

    async def create_thread(store: Any) -> thread_pb2.Thread:
        request = thread_service_pb2.CreateThreadRequest(new_vector_stores=[store])
        return (await client.call(client.threads.CreateThread, request)).thread

    async def create_thread_and_run(store: Any) -> thread_pb2.Thread:
        options = run_service_pb2.RunOptions(assistant_id=assistant.id)
        request = run_service_pb2.CreateThreadAndRunRequest(run=options, new_vector_stores=[store])
        runs = RunServiceStub(client.client.channel)
        run = (await client.call(runs.CreateThreadAndRun, request)).run
        return await client.get_thread(run.thread_id)

    assistant = await create_assistant(new)
    thread = await create_thread(new)
    for too_many in (
        create_assistant(new, new),
        create_assistant(new, tool_resources={"vector_store_ids": ["vs_x"]}),
    ):
        with pytest.raises(errors.TooLong, match="vector_stores"):
            await too_many
    with pytest.raises(errors.FileNotFound, match="file-0"):
        await create_thread(invalid)
    with pytest.raises(errors.FileNotFound) as refused:
        await create_thread_and_run(invalid)
    run_thread = await create_thread_and_run(new)
    stores = VectorStoreServiceStub(client.client.channel)
    listed = await client.call(
        stores.ListVectorStores, vector_store_service_pb2.ListVectorStoresRequest()
    )

    assert refused.value.field == "thread.tool_resources.file_search.vector_stores[0].file_ids"
    owners = (run_thread, thread, assistant)
    ids = [owner.tool_resources.vector_store_ids[0] for owner in owners]
    assert [store.id for store in listed.vector_stores] == ids
    assert [store.file_counts.total for store in listed.vector_stores] == [1, 1, 1]
