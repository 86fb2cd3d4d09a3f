"""Lists, updates and repeated requests are alike in all services.

The RPCs are found by their descriptors.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from svc_kit.auth.scopes import method_path
from svc_kit.errors import InvalidField, OutOfRange, RequestIdReused
from svc_kit.rpc.client import translate_errors
from tests.support.control import Client, RunningControl
from tests.support.operators import Operator
from tests.support.response_client import make_small_control
from tests.support.tenancy import (
    RESOURCES,
    is_for_callers,
    make_messages,
)
from tools.rpc_methods import list_services

on_one_loop = pytest.mark.asyncio(loop_scope="module")
METHODS = [method for service in list_services("corral.control.") for method in service.methods]
LISTS = [method for method in METHODS if method.name.startswith("List")]
UPDATES = [
    method for method in METHODS if method.name.startswith("Update") and is_for_callers(method)
]
"""Of objects of projects. A limit, which is the operator's, has fields that cannot be cleared."""
FIXED = {
    *("id", "adapter", "conversation_id", "file_id", "run_id", "thread_id", "vector_store_id"),
    *("create_time", "etag", "active_run_id", "update_mask"),
}
"""Fields that no update can change."""
ONLY = {"UpdateMessage": ["metadata"]}
"""The fields that can be changed, where these are few."""
SAMPLES: Mapping[str, Any] = {
    "model": "demo",
    "tools": [{"function": {"name": "f"}}],
    "tool_resources": {},
    "options": {"sampling": {"temperature": 0.5}},
    "response_format": {"kind": "KIND_JSON_OBJECT"},
    "reasoning_effort": "low",
    "attributes": {"x": {"string": "y"}},
}
"""Values of fields that cannot have just any."""
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "CreateAssistant": {"assistant": {"name": "x"}},
    "CreateBatch": {"metadata": {"x": "y"}},
    "CreateConversation": {"metadata": {"x": "y"}},
    "CreateConversationItems": {"items": [{"message": {"role": "ITEM_ROLE_USER"}}]},
    "CreateMessage": {"message": {"metadata": {"x": "y"}}},
    "CreateThread": {"thread": {"metadata": {"x": "y"}}},
    "CreateUpload": {"size_bytes": 2},
    "CreateVectorStore": {"name": "y"},
    "CreateVectorStoreFile": {"attributes": {"x": {"string": "y"}}},
}
"""What makes another request of a valid one, by the methods that create objects of callers. Runs,
responses and streams of bytes have tests of their own."""
CREATES = [method for method in METHODS if method.name in OTHERS]
LIMIT = "one-a-minute"
"""The id of a limit that the operator has."""
CLEARED: Mapping[str, object] = {"default_scale": 1.0}
"""The values of cleared fields that have a default."""


class Caller:
    """A project with two objects of each kind, and what it sends."""

    def __init__(self, running: RunningControl) -> None:
        self._running = running
        self._client = running.of_project("mine")
        self._operator = replace(self._client, metadata=running.service_metadata)
        self._ids: dict[str, str] = {}

    async def create_objects(self) -> None:
        for resource in RESOURCES.values():
            for name in ("first", "second"):
                self._ids |= await resource.create(self._client, name)
        await Operator.of(self._running).create_limit(LIMIT, "REQUESTS", 1)

    def request(self, method: MethodDescriptor) -> Any:
        if not is_for_callers(method):
            fields = {"limit_id": LIMIT} if method.name == "ListLimitBuckets" else {}
            return GetMessageClass(method.input_type)(**fields)
        return make_messages(method, self._ids)[0]

    async def call(self, method: MethodDescriptor, request: Message) -> Any:
        """Call a method. Raises DomainError."""
        client: Client = self._client if is_for_callers(method) else self._operator
        call: Any = client.channel.unary_unary(
            method_path(method),
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        with translate_errors():
            return await call(request, metadata=client.metadata)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Caller]:
    """A caller of a control service, which all tests share."""
    folder = tmp_path_factory.mktemp("methods")
    async with make_small_control(folder, None, patience_s=None) as running:
        caller = Caller(running)
        await caller.create_objects()
        yield caller


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tokens(caller: Caller) -> dict[str, str]:
    """The tokens of the second pages of the lists that have one."""
    pages = {}
    for method in LISTS:
        request = caller.request(method)
        request.page_size = 1
        pages[method_path(method)] = (await caller.call(method, request)).next_page_token
    return {path: token for path, token in pages.items() if token}


@on_one_loop
@pytest.mark.parametrize("method", LISTS, ids=method_path)
async def test_a_list_refuses_tokens_that_are_not_its_own(
    caller: Caller, tokens: dict[str, str], method: MethodDescriptor
) -> None:
    """Forged ones and those of all other lists; a negative page size is refused, too."""
    request = caller.request(method)
    own = tokens.get(method_path(method))
    if own is not None:
        request.page_token = own
        assert await caller.call(method, request)
    others = {token for path, token in tokens.items() if path != method_path(method)}
    assert len(others) >= 6
    for token in (*others, "1", "é", "nonsense", f"{(own or 'x' * 40)[:-4]}AAAA"):
        request.page_token = token
        with pytest.raises(InvalidField) as refused:
            await caller.call(method, request)
        assert refused.value.field == "page_token"
    request.page_token, request.page_size = "", -1
    with pytest.raises(OutOfRange) as negative:
        await caller.call(method, request)
    assert negative.value.field == "page_size"


@on_one_loop
@pytest.mark.parametrize("method", CREATES, ids=method_path)
async def test_a_repeated_request_id_returns_the_first_result(
    caller: Caller, method: MethodDescriptor
) -> None:
    """Also if both requests arrive concurrently; a request with other content is refused."""
    request = caller.request(method)
    request.request_id = method.full_name
    first, second = await asyncio.gather(*(caller.call(method, request) for _ in "12"))
    again = await caller.call(method, request)
    request.MergeFrom(type(request)(**OTHERS[method.name]))

    assert first == second == again
    with pytest.raises(RequestIdReused):
        await caller.call(method, request)


def changes_of(request: Any) -> Any:
    """The message with the changed fields: the object, or the request itself."""
    objects = (field for field in request.DESCRIPTOR.fields if field.number == 1)
    name = next((field.name for field in objects if field.message_type is not None), None)
    return request if name is None else getattr(request, name)


def sample_of(field: Any) -> Any:
    if field.name in SAMPLES:
        return SAMPLES[field.name]
    if field.message_type is not None:
        is_map = field.message_type.GetOptions().map_entry
        return {"x": "y"} if is_map else {"pairs": {"x": "y"}}
    return "x" if field.type == field.TYPE_STRING else 3


EDITABLE: Mapping[str, Mapping[str, Any]] = {
    method.name: {
        field.name: sample_of(field)
        for field in changes_of(GetMessageClass(method.input_type)()).DESCRIPTOR.fields
        if field.name in ONLY.get(method.name, {field.name} - FIXED)
    }
    for method in UPDATES
}
"""The fields that each update can change, with values: all but those that are fixed."""


def object_of(response: Any) -> Any:
    (field,) = response.DESCRIPTOR.fields
    return getattr(response, field.name)


@on_one_loop
@pytest.mark.parametrize("method", UPDATES, ids=method_path)
async def test_an_update_refuses_paths_that_cannot_be_changed(
    caller: Caller, method: MethodDescriptor
) -> None:
    """Immutable fields, parts of maps, and fields that do not exist; the error names the path."""
    request, editable = caller.request(method), EDITABLE[method.name]
    names = {field.name for field in changes_of(request).DESCRIPTOR.fields}
    for path in ("nothing", "metadata.k", "tools.function", *sorted(names - set(editable))):
        request.update_mask.paths[:] = [*editable, path]
        with pytest.raises(InvalidField, match=f"'{path}' cannot be changed") as refused:
            await caller.call(method, request)
        assert refused.value.field == "update_mask"


@on_one_loop
@pytest.mark.parametrize("method", UPDATES, ids=method_path)
async def test_an_update_changes_the_fields_of_its_mask(
    caller: Caller, method: MethodDescriptor
) -> None:
    """A named field that is unset is cleared; without a mask the fields that are set change."""

    async def send(*paths: str, **values: Any) -> Any:
        request = caller.request(method)
        changes = changes_of(request)
        for name in EDITABLE[method.name]:
            changes.ClearField(name)
        changes.MergeFrom(type(changes)(**values))
        request.update_mask.paths[:] = paths
        updated = object_of(await caller.call(method, request))
        return {name: getattr(updated, name) for name in EDITABLE[method.name]}

    values = EDITABLE[method.name]
    default = object_of(GetMessageClass(method.output_type)())
    cleared = {name: CLEARED.get(name, getattr(default, name)) for name in values}
    changed = await send(**values)
    assert [name for name in values if values[name] and changed[name] == cleared[name]] == []
    assert await send() == changed
    for name in values.keys() - {"model"}:
        assert await send(name) == changed | {name: cleared[name]}
        assert await send(name, **values) == changed
    if "model" not in values:
        assert await send("*") == cleared
