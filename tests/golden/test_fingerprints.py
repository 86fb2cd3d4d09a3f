"""A request that is sent again within a day is recognised, also by the next release."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from control_svc.adapters.model import NewAdapter
from control_svc.assistants.message_model import Attachment, AttachmentTool, NewMessage
from control_svc.assistants.model import AssistantSettings, NewAssistant, NewThread
from control_svc.base.idempotency import IdempotencyRecord, fingerprint_of
from control_svc.batches.model import NewBatch
from control_svc.conversations.model import NewConversation
from control_svc.files.model import FilePurpose, NewUpload
from control_svc.items.model import Role, Text
from control_svc.projects.projects import NewProject
from control_svc.responses.model import NewResponse, ResponseSettings
from control_svc.runs.model import NewRun, ToolOutput
from control_svc.tools.model import FileSearchTool, FunctionTool
from control_svc.vector_stores.model import NewVectorStore
from svc_kit.errors import RequestIdReused

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
MESSAGE: Final = NewMessage(
    role=Role.USER,
    content=(Text(text="hi"),),
    attachments=(Attachment("file-a", (AttachmentTool.FILE_SEARCH,)),),
)
TOOLS: Final = (FunctionTool(name="f"), FileSearchTool(vector_store_ids=("vs_1",)))
REQUESTS: Final[dict[str, tuple[object, ...]]] = {
    "adapter": (NewAdapter(name="voice", file_id="file-a"), "0" * 64),
    "assistant": (NewAssistant(settings=AssistantSettings(model="m", tools=TOOLS)),),
    "batch": (NewBatch(input_file_id="file-a", endpoint="/v1/embeddings"),),
    "conversation": (NewConversation(metadata={"b": "2", "a": "1"}),),
    "file": ("a.txt", FilePurpose.ASSISTANTS, timedelta(hours=1), "0" * 64),
    "project": (NewProject(id="p", display_name="P"),),
    "response": (NewResponse(settings=ResponseSettings(model="m", tools=TOOLS)),),
    "run": ("thread_1", NewRun(assistant_id="asst_1", options=b"\x01")),
    "thread": (NewThread(messages=(MESSAGE,)),),
    "tool outputs": ("run_1", (ToolOutput("call_1", "wet"),)),
    "upload": (NewUpload(filename="a", purpose=FilePurpose.BATCH, size_bytes=1, mime_type="x/y"),),
    "vector store": (NewVectorStore(name="s", life_days=7),),
}


def golden() -> dict[str, Any]:
    """The fingerprints as they are stored."""
    path = Path(__file__).with_name("fingerprints.json")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("name", REQUESTS)
def test_fingerprints_are_those_that_are_stored(name: str) -> None:
    """A class or field that gets another name says under which it is stored."""
    assert fingerprint_of(*REQUESTS[name]) == golden()[name]


def test_a_renamed_class_or_field_has_the_fingerprint_of_its_stored_name() -> None:
    """`STORED_AS` gives the old name."""

    @dataclass(frozen=True)
    class Old:
        label: str

    @dataclass(frozen=True)
    class New:
        STORED_AS = "Old"

        name: str = field(metadata={"STORED_AS": "label"})

    assert fingerprint_of(New("x")) == fingerprint_of(Old("x"))
    assert fingerprint_of(New("x")) != fingerprint_of(Old("y"))


def record(fingerprint: str) -> IdempotencyRecord:
    """A request that was carried out."""
    return IdempotencyRecord(
        method="CreateThread",
        request_id="r",
        fingerprint=fingerprint,
        resource_id="thread_1",
        created_at=NOW,
    )


def test_a_request_of_an_earlier_release_is_recognised_by_its_id() -> None:
    """Its fingerprint was made of names that nobody knows any more."""
    record("0" * 64).check_same(fingerprint_of("x"))

    with pytest.raises(RequestIdReused):
        record(fingerprint_of("y")).check_same(fingerprint_of("x"))
