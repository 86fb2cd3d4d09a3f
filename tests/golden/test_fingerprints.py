"""Fingerprints of idempotent requests equal those that earlier releases stored."""

import ast
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, SupportsBytes, Union, get_args, get_origin, get_type_hints

import pytest
from corral.inference.v1.generation_pb2 import GenerationOptions as GenerationOptionsMessage

from control_svc.adapters.model import NewAdapter
from control_svc.assistants.message_model import (
    AddedMessage,
    Attachment,
    AttachmentTool,
    NewMessage,
)
from control_svc.assistants.model import AssistantSettings, NewAssistant, NewThread
from control_svc.base.idempotency import STORED_AS, IdempotencyRecord, fingerprint_of
from control_svc.base.resource import Resource
from control_svc.batches.model import NewBatch
from control_svc.conversations.model import NewConversation, NewItems
from control_svc.files.model import FilePurpose, NewUpload
from control_svc.inference.generation_options import OPTIONS, GenerationOptions
from control_svc.items.input_items import InputItem
from control_svc.items.model import McpApprovalResponse, Message, Role, Text
from control_svc.projects.projects import NewProject
from control_svc.responses.model import NewResponse, ResponseSettings
from control_svc.runs.model import NewRun, ToolOutput
from control_svc.tools.model import FileSearchTool, FunctionTool
from control_svc.vector_stores.model import Chunking, NewStoreFile, NewVectorStore
from svc_kit.auth.principal import Priority
from svc_kit.errors import RequestIdReused
from tests.architecture.test_house_rules import ROOT

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
MESSAGE: Final = NewMessage(
    role=Role.USER,
    content=(Text(text="hi"),),
    attachments=(Attachment("file-a", (AttachmentTool.FILE_SEARCH,)),),
)
ITEMS: Final = (
    InputItem(content=Message(role=Role.USER, content=(Text(text="hi"),))),
    InputItem(content=McpApprovalResponse(approval_request_id="mcpr_1", approve=True)),
    InputItem(reference="msg_1"),
)
TOOLS: Final = (FunctionTool(name="f"), FileSearchTool(vector_store_ids=("vs_1",)))
THREAD: Final = NewThread(messages=(MESSAGE,))
RUN: Final = NewRun(assistant_id="asst_1", options=GenerationOptions.from_bytes(b"\x01"))
FILE: Final = NewStoreFile(
    file_id="file-a",
    chunking=Chunking(max_tokens=200, overlap_tokens=50),
    attributes={"year": 2026.0, "draft": True, "by": "me"},
)
REQUESTS: Final[dict[str, tuple[object, ...]]] = {
    "CreateAdapter": (NewAdapter(name="voice", file_id="file-a"), "0" * 64),
    "CreateAssistant": (NewAssistant(settings=AssistantSettings(model="m", tools=TOOLS)),),
    "CreateBatch": (NewBatch(input_file_id="file-a", endpoint="/v1/embeddings"),),
    "CreateConversation": (NewConversation(items=ITEMS, metadata={"b": "2", "a": "1"}),),
    "CreateConversationItems": (NewItems(conversation_id="conv_1", items=ITEMS),),
    "CreateFile": ("a.txt", FilePurpose.ASSISTANTS, timedelta(hours=1), "0" * 64),
    "CreateKey": ("laptop", ["control", "inference"], Priority.NORMAL, NOW),
    "CreateMessage": (AddedMessage(thread_id="thread_1", message=MESSAGE),),
    "CreateProject": (NewProject(id="p", display_name="P"),),
    "CreateResponse": (NewResponse(settings=ResponseSettings(model="m", tools=TOOLS)),),
    "CreateRun": ("thread_1", RUN),
    "CreateThread": (THREAD,),
    "CreateThreadAndRun": (THREAD, RUN),
    "CreateUpload": (
        NewUpload(filename="a", purpose=FilePurpose.BATCH, size_bytes=1, mime_type="x/y"),
    ),
    "CreateVectorStore": (NewVectorStore(name="s", files=(FILE,), life_days=7),),
    "CreateVectorStoreFile": ("vs_1", FILE),
    "CreateVectorStoreFileBatch": ("vs_1", FILE, NewStoreFile(file_id="file-b")),
    "MigrateThread": ("thread_1",),
    "RotateKey": ("key_1", timedelta(hours=1), NOW),
    "SubmitToolOutputs": ("run_1", (ToolOutput("call_1", "wet"),)),
}
"""Requests by the method that is stored with them."""
STABLE: Final = (NoneType, bool, int, float, str, SupportsBytes, datetime, timedelta)
"""Types that `fingerprint_of` accepts beside enums, mappings, sequences and dataclasses."""
NO_DEFAULT: Final = (MISSING, MISSING)


def golden() -> dict[str, Any]:
    path = Path(__file__).with_name("fingerprints.json")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("method", REQUESTS)
def test_fingerprints_equal_the_stored_ones(method: str) -> None:
    """With another fingerprint a request repeated after an upgrade would be refused."""
    assert fingerprint_of(*REQUESTS[method]) == golden()["fingerprints"][method]


def methods() -> Iterator[str]:
    for resource in Resource.__subclasses__():
        for rpc in resource.service.methods:
            if rpc.name.startswith("Create") and not hasattr(resource, rpc.name):
                yield rpc.name  # the standard method, which has the name of its RPC
    for path in (ROOT / "control_svc").rglob("*.py"):
        if path == Path(inspect.getfile(Resource)):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            ast.unparse(target): ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "IdempotencyRecord.of":
                yield constants[ast.unparse(node.args[0])]


def test_requests_of_every_method_are_pinned() -> None:
    """A renamed method would not find its recorded requests."""
    import_module("control_svc.slices")  # with all resources
    assert set(methods()) == set(REQUESTS) == set(golden()["fingerprints"])


def value_types(kind: Any) -> Iterator[type]:
    """The classes of values that a type annotation allows."""
    origin = get_origin(kind)
    if origin is Literal:
        return
    if origin is None:
        yield kind
        return
    assert origin in (Union, UnionType, tuple, Sequence, Mapping), kind
    for part in get_args(kind):
        if part is not Ellipsis:
            yield from value_types(part)


def stored_fields() -> dict[str, dict[str, bool]]:
    """The fields of all classes in requests by stored name, and whether each has a default."""
    found: dict[str, dict[str, bool]] = {}
    waiting = [type(fact) for facts in REQUESTS.values() for fact in facts]
    waiting.append(ToolOutput)
    while waiting:
        kind: Any = waiting.pop()
        name = getattr(kind, STORED_AS, kind.__name__)
        if kind in (tuple, list) or issubclass(kind, (*STABLE, Enum)) or name in found:
            continue
        if is_dataclass(kind):
            found[name] = {
                field.metadata.get(STORED_AS, field.name): (field.default, field.default_factory)
                != NO_DEFAULT
                for field in fields(kind)
            }
        else:
            assert hasattr(kind, "_field_defaults"), f"{name} has no stable form"
            found[name] = {field: field in kind._field_defaults for field in kind._fields}
        for hint in get_type_hints(kind).values():
            waiting += value_types(hint)
    return found


def test_stored_names_of_classes_and_fields_are_pinned() -> None:
    """A renamed class or field needs `STORED_AS` with its old name, a new field a default."""
    pinned, found = golden()["fields"], stored_fields()

    assert {name: set(names) - set(found.get(name, ())) for name, names in pinned.items()} == {
        name: set() for name in pinned
    }
    assert [
        f"{name}.{field}"
        for name, names in pinned.items()
        for field, has_default in found[name].items()
        if field not in names and not has_default
    ] == []


def test_a_new_optional_field_changes_no_fingerprint() -> None:
    """The earlier release recorded the request without it."""

    @dataclass(frozen=True)
    class Before:
        name: str

    @dataclass(frozen=True)
    class After:
        STORED_AS = "Before"

        name: str
        note: str = ""
        labels: Mapping[str, str] = field(default_factory=dict)

    assert fingerprint_of(After("x")) == fingerprint_of(Before("x"))
    assert fingerprint_of(After("x", note="y")) != fingerprint_of(Before("x"))


def test_a_renamed_class_or_field_has_the_fingerprint_of_its_stored_name() -> None:
    @dataclass(frozen=True)
    class Old:
        label: str

    @dataclass(frozen=True)
    class New:
        STORED_AS = "Old"

        name: str = field(metadata={"STORED_AS": "label"})

    assert fingerprint_of(New("x")) == fingerprint_of(Old("x"))
    assert fingerprint_of(New("x")) != fingerprint_of(Old("y"))


def test_generation_options_have_the_fingerprint_of_their_bytes() -> None:
    """Earlier releases kept them as bytes."""
    options = OPTIONS.from_message(GenerationOptionsMessage(deterministic=True))

    assert fingerprint_of(options) == fingerprint_of(b"\x58\x01")
    assert GenerationOptions.from_bytes(b"\x58\x01") == options


def record(fingerprint: str) -> IdempotencyRecord:
    return IdempotencyRecord(
        method="CreateThread",
        request_id="r",
        fingerprint=fingerprint,
        resource_id="thread_1",
        created_at=NOW,
    )


def test_a_request_of_an_earlier_release_is_recognised_by_its_id() -> None:
    """Fingerprints of release 0.1 cannot be computed any more."""
    record("0" * 64).check_same(fingerprint_of("x"))

    with pytest.raises(RequestIdReused):
        record(fingerprint_of("y")).check_same(fingerprint_of("x"))
