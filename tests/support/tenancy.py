"""What the tenancy test knows of each service whose objects belong to projects.

Whoever adds a service, or an RPC that callers without the scope admin reach, registers it in
`RESOURCES`: how to make an object, how to see it, and one good call of every RPC. The test then
writes the ids of one project into every text of every call of another. What nobody registered fails
it.
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
"""By kind."""


@dataclass(frozen=True)
class Resource:
    """One service: its objects, and a good call of each of its RPCs."""

    create: Callable[[Client, str], Awaitable[Ids]]
    """Makes objects with a text, the canary, in whatever they say: nobody else may read it."""
    observe: Callable[[Client, Ids], Awaitable[object]]
    """Everything that their owner sees of them; compared."""
    calls: Mapping[str, Callable[[Ids], Sequence[Message]]]
    """By RPC: the messages of a call with ids of the caller's own."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """By field: the reason that another project's id gets there, if it is not a NOT_FOUND."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """By RPC: how the answer of a good call begins, if it is not OK."""


async def create_file(client: Client, canary: str) -> Ids:
    """A file."""
    file = await client.create(canary.encode(), filename=canary)
    return {"file": file.id}


async def observe_file(client: Client, ids: Ids) -> object:
    """The file, its bytes and the list it stands in."""
    found, content = await client.get(ids["file"]), await client.read(ids["file"])
    return found, content, await client.page()


async def create_upload(client: Client, canary: str) -> Ids:
    """An upload with a part."""
    upload = await client.create_upload(len(canary), filename=canary, mime_type=canary)
    return {"upload": upload.id, "part": await client.add_part(upload.id, canary.encode())}


async def observe_upload(client: Client, ids: Ids) -> object:
    """The upload; nothing shows its parts, which the store of bytes would miss."""
    return await client.get_upload(ids["upload"])


async def create_adapter(client: Client, canary: str) -> Ids:
    """An adapter with a description."""
    made = await Registry.of(client).create(name=f"a{canary}", description=canary, model=canary)
    return {"adapter": made.id}


async def observe_adapter(client: Client, ids: Ids) -> object:
    """The adapter, and the list it stands in."""
    registry = Registry.of(client)
    return await registry.get(ids["adapter"]), await registry.call("ListAdapters")


async def create_batch(client: Client, canary: str) -> Ids:
    """A batch that was given up, which can be done again."""
    content = jsonl([chat_line(canary)])
    file = await client.create(content, filename=canary, purpose=BATCH)
    batches = BatchClient(client)
    batch = await batches.create_from_file(file.id, metadata={"canary": canary})
    await batches.cancel(batch.id)
    await batches.wait_for_outcome(batch.id)
    return {"input": file.id, "batch": batch.id}


async def observe_batch(client: Client, ids: Ids) -> object:
    """The batch, and the list it stands in."""
    return await BatchClient(client).get(ids["batch"]), await BatchClient(client).page()


async def create_conversation(client: Client, canary: str) -> Ids:
    """A conversation with an item."""
    conversations = ConversationClient(client)
    made = await conversations.create(make_message(canary), metadata={"canary": canary})
    (item,) = await conversations.items(made.id)
    return {"conversation": made.id, "item": item.id}


async def observe_conversation(client: Client, ids: Ids) -> object:
    """The conversation and its items."""
    conversations = ConversationClient(client)
    found = await conversations.get(ids["conversation"])
    return found, await conversations.items(ids["conversation"])


async def create_nothing(client: Client, canary: str) -> Ids:
    """For a service whose objects another one's are made with."""
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


# ---- what there is


def services() -> list[ServiceDescriptor]:
    """Every service of the control plane's contracts."""
    modules = [
        importlib.import_module(f"corral.control.v1.{module.name}")
        for module in pkgutil.iter_modules(corral.control.v1.__path__)
        if module.name.endswith("_pb2")
    ]
    return [service for m in modules for service in m.DESCRIPTOR.services_by_name.values()]


def path_of(method: MethodDescriptor) -> str:
    """As on the wire."""
    return f"/{method.containing_service.full_name}/{method.name}"


def is_for_callers(method: MethodDescriptor) -> bool:
    """Whether callers of a project reach it: not only operators, or our own services."""
    return METHOD_SCOPES[path_of(method)] not in (Scope.ADMIN, Scope.SERVICE)


def unregistered() -> list[str]:
    """RPCs that callers reach and that nobody registered here."""
    return [
        path_of(method)
        for service in services()
        for method in service.methods
        if is_for_callers(method)
        and (
            service.full_name not in RESOURCES
            or method.name not in RESOURCES[service.full_name].calls
        )
    ]


# ---- the texts of a call


@dataclass(frozen=True)
class Place:
    """A text in a call: in which of its messages, and by which fields; a number is a place in a
    list."""

    message: int
    path: tuple[str, ...]

    @property
    def field(self) -> str:
        """The name of the field."""
        return self.path[-1]

    def write(self, messages: Sequence[Message], text: str) -> None:
        """Put a text there; into a list as its only element."""
        holder = self._holder(messages)
        if holder.DESCRIPTOR.fields_by_name[self.field].is_repeated:
            holder.ClearField(self.field)
            getattr(holder, self.field).append(text)
        else:
            setattr(holder, self.field, text)

    def read(self, messages: Sequence[Message]) -> list[str]:
        """The texts that are there."""
        found = getattr(self._holder(messages), self.field)
        return [found] if isinstance(found, str) else list(found)

    def _holder(self, messages: Sequence[Message]) -> Any:
        holder: Any = messages[self.message]
        for name in self.path[:-1]:
            holder = holder[int(name)] if name.isdigit() else getattr(holder, name)
        return holder


def places(messages: Sequence[Message]) -> list[Place]:
    """Every text of a call, set or not; of fields that exclude each other only the one that is."""
    return [
        Place(number, path)
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
        elif _is_ours(each):
            inner = getattr(message, each.name)
            elements = (
                {(str(n),): e for n, e in enumerate(inner)} if each.is_repeated else {(): inner}
            )
            for number, element in elements.items():
                for rest in _texts(element, each.message_type):
                    yield (each.name, *number, *rest)


def _is_ours(each: FieldDescriptor) -> bool:
    """A message with fields of its own, no map and nothing of Google's."""
    kind = each.message_type
    return kind is not None and not (
        kind.GetOptions().map_entry or kind.file.package.startswith("google.")
    )


# ---- a call and its answer


async def answer(client: Client, method: MethodDescriptor, messages: Sequence[Message]) -> str:
    """What a call is answered with, in words: the error, or the messages without what is made anew
    each time."""
    kind = "stream" if method.client_streaming else "unary"
    kind += "_stream" if method.server_streaming else "_unary"
    start = getattr(client.channel, kind)(
        path_of(method),
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
    return f"OK {_without_novelty(str(replies))}"


def _without_novelty(text: str) -> str:
    text = re.sub(r"(seconds|nanos): \d+", r"\1", text)
    return re.sub(r"[0-9a-f]{32}", "ID", text)


def unknown(known: str) -> str:
    """An id of the same form that nobody has."""
    return known[:-4] + ("0000" if not known.endswith("0000") else "1111")
