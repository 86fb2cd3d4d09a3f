"""Describes all services whose objects belong to projects, for the tenancy test.

Each RPC that callers without the scope admin can call must be registered in `RESOURCES`, with a
valid call of it, and for each service how its objects are created and read. The test writes the ids
of one project into every string field of every call of another project, and fails for RPCs that are
not registered.
"""

import importlib
import pkgutil
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import corral.control.v1
from corral.control.v1 import (
    adapter_pb2,
    adapter_service_pb2,
    file_pb2,
    file_service_pb2,
    item_pb2,
    upload_service_pb2,
)
from corral.control.v1 import batch_service_pb2 as batch_pb
from corral.control.v1 import conversation_service_pb2 as conversation_pb
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from svc_kit.auth.scopes import METHOD_SCOPES, Scope
from svc_kit.errors import DomainError
from svc_kit.rpc.client import translate_errors
from tests.support.batches import CHAT, BatchClient, chat_line, jsonl
from tests.support.control import BATCH, Client
from tests.support.conversation_client import ConversationClient, make_message
from tests.support.registry import Registry, adapter_bytes
from tests.support.response_tenancy import create_response, observe_response, response_calls
from tests.support.run_tenancy import RUN_ANSWERS, create_run, observe_run, run_calls
from tests.support.thread_tenancy import (
    assistant_calls,
    create_assistant,
    create_thread,
    message_calls,
    observe_assistant,
    observe_thread,
    thread_calls,
)
from tests.support.vector_tenancy import (
    create_vector_store,
    observe_vector_store,
    store_calls,
    store_file_calls,
)

Ids = Mapping[str, str]
"""Ids of objects by kind."""


@dataclass(frozen=True)
class Resource:
    """One service: its objects, and a valid call of each of its RPCs."""

    create: Callable[[Client, str], Awaitable[Ids]]
    """Creates objects whose texts contain the canary, which other projects must not see."""
    observe: Callable[[Client, Ids], Awaitable[object]]
    """Reads everything that the owner can see of the objects, to detect changes."""
    calls: Mapping[str, Callable[[Ids], Sequence[Message]]]
    """By RPC: the messages of a valid call with the caller's own ids."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """By field: the error reason for a foreign id, if it is not NOT_FOUND."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """By RPC: the prefix of the response to a valid call, if it is not OK."""


async def create_file(client: Client, canary: str) -> Ids:
    """Create a file."""
    file = await client.create(canary.encode(), filename=canary)
    return {"file": file.id}


async def observe_file(client: Client, ids: Ids) -> object:
    """Read the file, its content and the list of files."""
    file, content = await client.get(ids["file"]), await client.read(ids["file"])
    return file, content, await client.page()


async def create_upload(client: Client, canary: str) -> Ids:
    """Create an upload with a part."""
    upload = await client.create_upload(len(canary), filename=canary, mime_type=canary)
    return {"upload": upload.id, "part": await client.add_part(upload.id, canary.encode())}


async def observe_upload(client: Client, ids: Ids) -> object:
    """Read the upload. No RPC returns its parts."""
    return await client.get_upload(ids["upload"])


async def create_adapter(client: Client, canary: str) -> Ids:
    """Create an adapter with a description."""
    adapter = await Registry.of(client).create(name=f"a{canary}", description=canary, model=canary)
    return {"adapter": adapter.id}


async def observe_adapter(client: Client, ids: Ids) -> object:
    """Read the adapter and the list of adapters."""
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
    """Read the batch and the list of batches."""
    return await BatchClient(client).get(ids["batch"]), await BatchClient(client).page()


async def create_conversation(client: Client, canary: str) -> Ids:
    """Create a conversation with an item."""
    conversations = ConversationClient(client)
    conversation = await conversations.create(make_message(canary), metadata={"canary": canary})
    (item,) = await conversations.items(conversation.id)
    return {"conversation": conversation.id, "item": item.id}


async def observe_conversation(client: Client, ids: Ids) -> object:
    """Read the conversation and its items."""
    conversations = ConversationClient(client)
    conversation = await conversations.get(ids["conversation"])
    return conversation, await conversations.items(ids["conversation"])


async def create_nothing(client: Client, canary: str) -> Ids:
    """Create nothing, for a service whose objects are created with those of another service."""
    return {}


_HEADER = file_pb2.FileHeader(filename="x", purpose=file_pb2.FILE_PURPOSE_USER_DATA)

RESOURCES: Mapping[str, Resource] = {
    "corral.control.v1.FileService": Resource(
        create_file,
        observe_file,
        {
            "CreateFile": lambda ids: [
                file_service_pb2.CreateFileRequest(header=_HEADER),
                file_service_pb2.CreateFileRequest(chunk=b"x"),
            ],
            "GetFile": lambda ids: [file_service_pb2.GetFileRequest(file_id=ids["file"])],
            "ListFiles": lambda ids: [file_service_pb2.ListFilesRequest()],
            "DeleteFile": lambda ids: [file_service_pb2.DeleteFileRequest(file_id=ids["file"])],
            "DownloadFile": lambda ids: [file_service_pb2.DownloadFileRequest(file_id=ids["file"])],
        },
    ),
    "corral.control.v1.UploadService": Resource(
        create_upload,
        observe_upload,
        {
            "CreateUpload": lambda ids: [
                upload_service_pb2.CreateUploadRequest(
                    filename="x",
                    purpose=file_pb2.FILE_PURPOSE_USER_DATA,
                    size_bytes=1,
                    mime_type="text/plain",
                )
            ],
            "GetUpload": lambda ids: [upload_service_pb2.GetUploadRequest(upload_id=ids["upload"])],
            "AddUploadPart": lambda ids: [
                upload_service_pb2.AddUploadPartRequest(upload_id=ids["upload"]),
                upload_service_pb2.AddUploadPartRequest(chunk=b"x"),
            ],
            "CompleteUpload": lambda ids: [
                upload_service_pb2.CompleteUploadRequest(
                    upload_id=ids["upload"], part_ids=[ids["part"]]
                )
            ],
            "CancelUpload": lambda ids: [
                upload_service_pb2.CancelUploadRequest(upload_id=ids["upload"])
            ],
        },
        refusals={"part_ids": "INVALID_FIELD"},
    ),
    "corral.control.v1.AdapterService": Resource(
        create_adapter,
        observe_adapter,
        {
            "CreateAdapter": lambda ids: [
                adapter_service_pb2.CreateAdapterRequest(
                    header=adapter_pb2.AdapterHeader(name="voice", replace=True)
                ),
                adapter_service_pb2.CreateAdapterRequest(chunk=adapter_bytes()),
            ],
            "GetAdapter": lambda ids: [
                adapter_service_pb2.GetAdapterRequest(adapter=ids["adapter"])
            ],
            "ListAdapters": lambda ids: [adapter_service_pb2.ListAdaptersRequest()],
            "UpdateAdapter": lambda ids: [
                adapter_service_pb2.UpdateAdapterRequest(adapter=ids["adapter"], description="x")
            ],
            "DeleteAdapter": lambda ids: [
                adapter_service_pb2.DeleteAdapterRequest(adapter=ids["adapter"])
            ],
            "RetryAdapter": lambda ids: [
                adapter_service_pb2.RetryAdapterRequest(adapter=ids["adapter"])
            ],
        },
    ),
    "corral.control.v1.BatchService": Resource(
        create_batch,
        observe_batch,
        {
            "CreateBatch": lambda ids: [
                batch_pb.CreateBatchRequest(input_file_id=ids["input"], endpoint=CHAT)
            ],
            "GetBatch": lambda ids: [batch_pb.GetBatchRequest(batch_id=ids["batch"])],
            "ListBatches": lambda ids: [batch_pb.ListBatchesRequest()],
            "CancelBatch": lambda ids: [batch_pb.CancelBatchRequest(batch_id=ids["batch"])],
            "WatchBatch": lambda ids: [batch_pb.WatchBatchRequest(batch_id=ids["batch"])],
        },
    ),
    "corral.control.v1.ConversationService": Resource(
        create_conversation,
        observe_conversation,
        {
            "CreateConversation": lambda ids: [
                conversation_pb.CreateConversationRequest(items=[item_pb2.Item(id=ids["item"])])
            ],
            "GetConversation": lambda ids: [
                conversation_pb.GetConversationRequest(conversation_id=ids["conversation"])
            ],
            "UpdateConversation": lambda ids: [
                conversation_pb.UpdateConversationRequest(conversation_id=ids["conversation"])
            ],
            "DeleteConversation": lambda ids: [
                conversation_pb.DeleteConversationRequest(conversation_id=ids["conversation"])
            ],
            "CreateConversationItems": lambda ids: [
                conversation_pb.CreateConversationItemsRequest(
                    conversation_id=ids["conversation"], items=[make_message("x")]
                )
            ],
            "GetConversationItem": lambda ids: [
                conversation_pb.GetConversationItemRequest(
                    conversation_id=ids["conversation"], item_id=ids["item"]
                )
            ],
            "ListConversationItems": lambda ids: [
                conversation_pb.ListConversationItemsRequest(conversation_id=ids["conversation"])
            ],
            "DeleteConversationItem": lambda ids: [
                conversation_pb.DeleteConversationItemRequest(
                    conversation_id=ids["conversation"], item_id=ids["item"]
                )
            ],
        },
    ),
    "corral.control.v1.AssistantService": Resource(
        create_assistant, observe_assistant, assistant_calls()
    ),
    "corral.control.v1.ResponseService": Resource(
        create_response,
        observe_response,
        response_calls(),
        refusals={"previous_response_id": "PREVIOUS_RESPONSE_NOT_FOUND"},
    ),
    "corral.control.v1.RunService": Resource(
        create_run, observe_run, run_calls(), answers=RUN_ANSWERS
    ),
    "corral.control.v1.ThreadService": Resource(create_thread, observe_thread, thread_calls()),
    "corral.control.v1.MessageService": Resource(create_nothing, observe_thread, message_calls()),
    "corral.control.v1.VectorStoreService": Resource(
        create_vector_store, observe_vector_store, store_calls()
    ),
    "corral.control.v1.VectorStoreFileService": Resource(
        create_nothing, observe_vector_store, store_file_calls()
    ),
}


# ---- registered RPCs


def list_services() -> list[ServiceDescriptor]:
    """All services of the package corral.control.v1."""
    modules = [
        importlib.import_module(f"corral.control.v1.{module.name}")
        for module in pkgutil.iter_modules(corral.control.v1.__path__)
        if module.name.endswith("_pb2")
    ]
    return [service for m in modules for service in m.DESCRIPTOR.services_by_name.values()]


def rpc_path(method: MethodDescriptor) -> str:
    """The path of an RPC, as in HTTP/2."""
    return f"/{method.containing_service.full_name}/{method.name}"


def is_for_callers(method: MethodDescriptor) -> bool:
    """Whether callers of a project may call the RPC: it is not for operators or services only."""
    return METHOD_SCOPES[rpc_path(method)] not in (Scope.ADMIN, Scope.SERVICE)


def unregistered_rpcs() -> list[str]:
    """RPCs for callers that are missing in `RESOURCES`."""
    return [
        rpc_path(method)
        for service in list_services()
        for method in service.methods
        if is_for_callers(method)
        and (
            service.full_name not in RESOURCES
            or method.name not in RESOURCES[service.full_name].calls
        )
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
        """The name of the field."""
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
        """The values of the field."""
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
    """Whether the field is a message of Corral, and not a map."""
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
        rpc_path(method),
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
