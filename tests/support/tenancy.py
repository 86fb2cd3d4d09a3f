"""Describes all services whose objects belong to projects, for the tenancy test.

Each service that callers without the scope admin can call is in `RESOURCES`: how its objects are
created and read, and what a valid call of an RPC has beside ids. The test writes the ids of one
project into every string field of every call of another project.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from svc_kit.auth.scopes import Scope, method_options, method_path
from svc_kit.errors import DomainError
from svc_kit.rpc.client import translate_errors
from tests.support.batches import CHAT, BatchClient, chat_line, jsonl
from tests.support.control import BATCH, USER_DATA, Client
from tests.support.conversation_client import ConversationClient, make_message
from tests.support.registry import Registry, adapter_bytes
from tests.support.response_tenancy import (
    ITEM_WITH_FILES,
    RESPONSE_CALLS,
    create_response,
    observe_response,
)
from tests.support.thread_tenancy import (
    ASSISTANT_CALLS,
    MESSAGE_CALLS,
    RUN_ANSWERS,
    RUN_CALLS,
    RUN_IDS,
    THREAD_CALLS,
    THREAD_IDS,
    create_assistant,
    create_run,
    create_thread,
    observe_assistant,
    observe_run,
    observe_thread,
)
from tests.support.vector_tenancy import (
    STORE_CALLS,
    STORE_FILE_CALLS,
    STORE_IDS,
    create_vector_store,
    observe_vector_store,
)
from tools.rpc_methods import list_services

Ids = Mapping[str, str]
"""Ids of objects by kind."""
Calls = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Resource:
    """One service: its objects, and valid calls of its RPCs."""

    create: Callable[[Client, str], Awaitable[Ids]]
    """Creates objects whose texts contain the canary, which other projects must not see."""
    observe: Callable[[Client, Ids], Awaitable[object]]
    """Reads everything that the owner can see of the objects, to detect changes."""
    ids: Ids
    """The kinds of the ids in requests, by field."""
    calls: Calls = field(default_factory=dict)
    """By RPC: the fields of each message of a valid call that has more than these ids. `{file}` is
    the caller's own id."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """By field: the error reason for a foreign id, if it is not NOT_FOUND."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """By RPC: the prefix of the response to a valid call, if it is not OK."""


async def create_file(client: Client, canary: str) -> Ids:
    file = await client.create(canary.encode(), filename=canary)
    return {"file": file.id}


async def observe_file(client: Client, ids: Ids) -> object:
    file, content = await client.get(ids["file"]), await client.read(ids["file"])
    return file, content, await client.page()


async def create_upload(client: Client, canary: str) -> Ids:
    upload = await client.create_upload(len(canary), filename=canary, mime_type=canary)
    return {"upload": upload.id, "part": await client.add_part(upload.id, canary.encode())}


async def observe_upload(client: Client, ids: Ids) -> object:
    """Read the upload. No RPC returns its parts."""
    return await client.get_upload(ids["upload"])


async def create_adapter(client: Client, canary: str) -> Ids:
    adapter = await Registry.of(client).create(name=f"a{canary}", description=canary, model=canary)
    return {"adapter": adapter.id}


async def observe_adapter(client: Client, ids: Ids) -> object:
    registry = Registry.of(client)
    return await registry.get(ids["adapter"]), await registry.call("ListAdapters")


async def create_batch(client: Client, canary: str) -> Ids:
    """Create a batch and cancel it, so that no job changes it later."""
    content = jsonl([chat_line(canary)])
    file = await client.create(content, filename=canary, purpose=BATCH)
    batches = BatchClient(client)
    batch = await batches.create_from_file(file.id, metadata={"canary": canary})
    await batches.cancel(batch.id)
    await batches.wait_for_outcome(batch.id)
    return {"input": file.id, "batch": batch.id}


async def observe_batch(client: Client, ids: Ids) -> object:
    return await BatchClient(client).get(ids["batch"]), await BatchClient(client).page()


async def create_conversation(client: Client, canary: str) -> Ids:
    conversations = ConversationClient(client)
    conversation = await conversations.create(make_message(canary), metadata={"canary": canary})
    (item,) = await conversations.items(conversation.id)
    return {"conversation": conversation.id, "item": item.id}


async def observe_conversation(client: Client, ids: Ids) -> object:
    conversations = ConversationClient(client)
    conversation = await conversations.get(ids["conversation"])
    return conversation, await conversations.items(ids["conversation"])


async def create_nothing(client: Client, canary: str) -> Ids:
    return {}


RESOURCES: Mapping[str, Resource] = {
    "corral.control.v1.FileService": Resource(
        create_file,
        observe_file,
        {"file_id": "file"},
        {
            "CreateFile": [
                {"header": {"filename": "x", "purpose": USER_DATA}},
                {"chunk": b"x"},
            ],
        },
    ),
    "corral.control.v1.UploadService": Resource(
        create_upload,
        observe_upload,
        {"upload_id": "upload"},
        {
            "CreateUpload": [
                {
                    "filename": "x",
                    "purpose": USER_DATA,
                    "size_bytes": 1,
                    "mime_type": "text/plain",
                }
            ],
            "AddUploadPart": [{"upload_id": "{upload}"}, {"chunk": b"x"}],
            "CompleteUpload": [{"upload_id": "{upload}", "part_ids": ["{part}"]}],
        },
        refusals={"part_ids": "INVALID_FIELD"},
    ),
    "corral.control.v1.AdapterService": Resource(
        create_adapter,
        observe_adapter,
        {"adapter": "adapter"},
        {
            "CreateAdapter": [
                {"header": {"name": "voice", "replace": True}},
                {"chunk": adapter_bytes()},
            ],
            "UpdateAdapter": [{"adapter": "{adapter}", "description": "x"}],
        },
    ),
    "corral.control.v1.BatchService": Resource(
        create_batch,
        observe_batch,
        {"batch_id": "batch"},
        {"CreateBatch": [{"input_file_id": "{input}", "endpoint": CHAT}]},
    ),
    "corral.control.v1.ConversationService": Resource(
        create_conversation,
        observe_conversation,
        {"conversation_id": "conversation", "item_id": "item"},
        {
            "CreateConversation": [{"items": [{"id": "{item}"}]}],
            "CreateConversationItems": [
                {
                    "conversation_id": "{conversation}",
                    "items": [ITEM_WITH_FILES],
                }
            ],
        },
    ),
    "corral.control.v1.AssistantService": Resource(
        create_assistant, observe_assistant, {"assistant_id": "assistant"}, ASSISTANT_CALLS
    ),
    "corral.control.v1.ResponseService": Resource(
        create_response,
        observe_response,
        {"response_id": "response"},
        RESPONSE_CALLS,
        refusals={"previous_response_id": "PREVIOUS_RESPONSE_NOT_FOUND"},
    ),
    "corral.control.v1.RunService": Resource(
        create_run, observe_run, RUN_IDS, RUN_CALLS, answers=RUN_ANSWERS
    ),
    "corral.control.v1.ThreadService": Resource(
        create_thread, observe_thread, THREAD_IDS, THREAD_CALLS
    ),
    "corral.control.v1.MessageService": Resource(
        create_nothing, observe_thread, THREAD_IDS, MESSAGE_CALLS
    ),
    "corral.control.v1.VectorStoreService": Resource(
        create_vector_store, observe_vector_store, STORE_IDS, STORE_CALLS
    ),
    "corral.control.v1.VectorStoreFileService": Resource(
        create_nothing, observe_vector_store, STORE_IDS, STORE_FILE_CALLS
    ),
}


def make_messages(method: MethodDescriptor, ids: Ids) -> list[Any]:
    message, resource = (
        GetMessageClass(method.input_type),
        RESOURCES[method.containing_service.full_name],
    )
    names = [name for name in resource.ids if name in method.input_type.fields_by_name]
    of_ids = {name: f"{{{resource.ids[name]}}}" for name in names}
    calls = resource.calls.get(method.name, [of_ids])
    return [message(**_insert_ids(fields, ids)) for fields in calls]


def _insert_ids(value: Any, ids: Ids) -> Any:
    if isinstance(value, str):
        return value.format_map(ids)
    if isinstance(value, dict):
        return {name: _insert_ids(each, ids) for name, each in value.items()}
    if isinstance(value, list):
        return [_insert_ids(each, ids) for each in value]
    return value


# ---- registered RPCs


def is_for_callers(method: MethodDescriptor) -> bool:
    """Whether callers of a project may call the RPC: it is not for operators or services only."""
    operators = (Scope.ADMIN, Scope.ADMIN_READ, Scope.SERVICE)
    return method_options(method).scope not in operators


def unregistered_services() -> list[str]:
    """Services for callers that are missing in `RESOURCES`."""
    return [
        service.full_name
        for service in list_services("corral.control.")
        if service.full_name not in RESOURCES and any(map(is_for_callers, service.methods))
    ]


# ---- string fields of a call


@dataclass(frozen=True)
class TextField:
    """A string field of a call: the index of the message, and the path of field names and list
    indexes."""

    message: int
    path: tuple[str, ...]

    @property
    def field(self) -> str:
        return self.path[-1]

    def write(self, messages: Sequence[Message], text: str) -> None:
        """Set the field; a repeated field gets one element."""
        holder = self._holder(messages)
        if holder.DESCRIPTOR.fields_by_name[self.field].is_repeated:
            holder.ClearField(self.field)
            getattr(holder, self.field).append(text)
        else:
            setattr(holder, self.field, text)

    def read(self, messages: Sequence[Message]) -> list[str]:
        value = getattr(self._holder(messages), self.field)
        return [value] if isinstance(value, str) else list(value)

    def _holder(self, messages: Sequence[Message]) -> Any:
        holder: Any = messages[self.message]
        for name in self.path[:-1]:
            holder = holder[int(name)] if name.isdigit() else getattr(holder, name)
        return holder


def text_fields(messages: Sequence[Message]) -> list[TextField]:
    """All string fields of a call, set or not. Unset alternatives of a oneof are omitted."""
    return [
        TextField(number, path)
        for number, message in enumerate(messages)
        for path in _texts(message, message.DESCRIPTOR)
    ]


def _texts(message: Any, descriptor: Any) -> Iterator[tuple[str, ...]]:
    for each in descriptor.fields:
        chosen = each.containing_oneof and message.WhichOneof(each.containing_oneof.name)
        if chosen and chosen != each.name:
            continue
        if each.type == FieldDescriptor.TYPE_STRING:
            yield (each.name,)
        elif _is_corral_message(each):
            inner = getattr(message, each.name)
            elements = (
                {(str(n),): e for n, e in enumerate(inner)} if each.is_repeated else {(): inner}
            )
            for number, element in elements.items():
                for rest in _texts(element, each.message_type):
                    yield (each.name, *number, *rest)


def _is_corral_message(each: FieldDescriptor) -> bool:
    kind = each.message_type
    return kind is not None and not (
        kind.GetOptions().map_entry or kind.file.package.startswith("google.")
    )


# ---- calls


async def call_method(client: Client, method: MethodDescriptor, messages: Sequence[Message]) -> str:
    """Make a call. Returns the error as text, or the messages as text without new ids and times."""
    kind = "stream" if method.client_streaming else "unary"
    kind += "_stream" if method.server_streaming else "_unary"
    start = getattr(client.channel, kind)(
        method_path(method),
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    request = iter(messages) if method.client_streaming else messages[0]
    call = start(request, metadata=client.metadata)
    try:
        with translate_errors():
            replies = [each async for each in call] if method.server_streaming else [await call]
    except DomainError as error:
        return f"{type(error).__mro__[1].__name__} {error.reason}: {error.message}"
    return f"OK {_without_ids_and_times(str(replies))}"


def _without_ids_and_times(text: str) -> str:
    text = re.sub(r"(seconds|nanos): \d+", r"\1", text)
    return re.sub(r"[0-9a-f]{32}", "ID", text)


def make_unknown_id(known: str) -> str:
    """An id of the same form that does not exist."""
    return known[:-4] + ("0000" if not known.endswith("0000") else "1111")
