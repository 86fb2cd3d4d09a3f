"""Documents and events that release 0.1 stored are read, and written with the same bytes.

`stored.json` is what 0.1 wrote for the objects below. Several classes are tuples in JSON, so the
order of their fields is stored too, which no schema shows.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import pytest

from control_svc.agent.drafts import DraftKind
from control_svc.assistants import queries as assistant_queries
from control_svc.assistants.message_model import (
    Attachment,
    AttachmentTool,
    IncompleteReason,
    ThreadMessage,
)
from control_svc.assistants.model import AssistantSettings, Thread, ThreadSettings
from control_svc.inference.turns import ChoiceMode, TurnUsage
from control_svc.items import queries as item_queries
from control_svc.items.input_items import Include
from control_svc.items.model import (
    Compaction,
    Content,
    CustomToolCall,
    CustomToolCallOutput,
    FileCitation,
    FileInput,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    ItemStatus,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    McpToolDescription,
    Message,
    Reasoning,
    Refusal,
    Role,
    SearchResult,
    Text,
    TokenLogprob,
)
from control_svc.responses import content_cipher
from control_svc.responses import model as response_model
from control_svc.responses import queries as response_queries
from control_svc.responses.event_codec import RESPONSE_EVENTS
from control_svc.responses.events import (
    AnnotationEvent,
    CallEvent,
    EventType,
    ItemEvent,
    LifeEvent,
    PartEvent,
    ResponseEvent,
    StepEvent,
    TextEvent,
)
from control_svc.runs import model as run_model
from control_svc.runs.events import (
    CallDelta,
    MessageChanged,
    MessageDelta,
    ReasoningDelta,
    RunChanged,
    RunEvent,
    StepChanged,
    ThreadCreated,
)
from control_svc.runs.queries import (
    RunEventDocuments,
    run_document,
    run_of,
    settings_document,
    step_document,
    step_of,
)
from control_svc.runs.steps import (
    FileSearchStepCall,
    FunctionStepCall,
    MessageCreation,
    RunStep,
    StepState,
    ToolCalls,
)
from control_svc.tools.model import (
    CustomTool,
    FileSearchTool,
    FormatKind,
    FunctionTool,
    McpTool,
    ResponseFormat,
    ToolChoice,
    ToolResources,
)

GOLDEN: Final = Path(__file__).with_name("stored.json")
NOW: Final = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LATER: Final = datetime(2026, 1, 2, 4, tzinfo=UTC)
USAGE: Final = TurnUsage(prompt_tokens=11, cached_tokens=7, completion_tokens=5, reasoning_tokens=3)
CITATION: Final = FileCitation(file_id="file-a", filename="a.txt", marker="[1]", start=4, end=7)
LOGPROB: Final = TokenLogprob(
    token="�",
    logprob=-0.5,
    raw=b"\xe2\x82",
    top=(TokenLogprob(token="b", logprob=-1.5, raw=b"b"),),
)
PARTS: Final = (
    Text(text="Grüße [1]", annotations=(CITATION,), logprobs=(LOGPROB,)),
    Refusal(refusal="no"),
    Image(url="https://example.org/a.png", detail="low"),
    Image(file_id="file-b"),
    FileInput(file_id="file-c", filename="c.txt"),
    FileInput(data_url="data:text/plain,x"),
)
RESULT: Final = SearchResult(
    file_id="file-a", filename="a.txt", score=0.5, text="found", attributes_json='{"year":1}'
)
CONTENTS: Final[tuple[Content, ...]] = (
    Message(role=Role.ASSISTANT, content=PARTS),
    FunctionCall(call_id="call_1", name="f", arguments='{"a": 1}'),
    FunctionCallOutput(call_id="call_1", output=(Text(text="out"),)),
    CustomToolCall(call_id="call_2", name="g", input="free"),
    CustomToolCallOutput(call_id="call_2", output=(Text(text="out"),)),
    Reasoning(text="because", sealed="AQ=="),
    Compaction(sealed="Ag=="),
    FileSearchCall(
        call_id="call_3", queries=("one", "two"), results=(RESULT,), problem="late", first=4
    ),
    McpListTools(
        server_label="docs",
        tools=(
            McpToolDescription(
                name="find",
                description="Finds.",
                input_schema_json="{}",
                annotations_json='{"readOnlyHint":true}',
            ),
        ),
        problem="slow",
    ),
    McpCall(
        server_label="docs",
        name="find",
        arguments="{}",
        output="here",
        problem="slow",
        approval_request_id="mcpr_1",
    ),
    McpApprovalRequest(server_label="docs", name="find", arguments="{}"),
    McpApprovalResponse(approval_request_id="mcpr_1", approve=True, reason="fine"),
)
ITEM: Final = Item(id="msg_1", status=ItemStatus.INCOMPLETE, created_at=NOW, content=CONTENTS[0])
RESOURCES: Final = ToolResources(vector_store_ids=("vs_1",))
FORMAT: Final = ResponseFormat(
    kind=FormatKind.JSON_SCHEMA, name="n", description="d", schema_json="{}", strict=True
)
TOOLS: Final = (
    FunctionTool(name="f", description="d", parameters_json="{}", strict=False),
    FileSearchTool(
        vector_store_ids=("vs_1",),
        max_results=5,
        ranker="auto",
        score_threshold=0.25,
        filters_json='{"type":"eq"}',
    ),
)
ALL_TOOLS: Final = (
    *TOOLS,
    CustomTool(name="g", description="d", syntax="regex", definition="a+"),
    McpTool(
        server_label="docs",
        description="d",
        allowed_tools=("find",),
        require_approval="never",
        approval_exempt=("drop",),
    ),
)
CHOICE: Final = ToolChoice(mode=ChoiceMode.REQUIRED, allowed_names=("f",), is_one=True)
ATTACHMENTS: Final = (Attachment("file-a", (AttachmentTool.FILE_SEARCH,)), Attachment("file-b"))
ASSISTANT: Final = AssistantSettings(
    model="m",
    name="n",
    description="d",
    instructions="i",
    tools=TOOLS,
    resources=RESOURCES,
    metadata={"a": "b"},
    format=FORMAT,
    reasoning_effort="low",
)
THREAD: Final = ThreadSettings(resources=RESOURCES, metadata={"a": "b"})
RUN_SETTINGS: Final = run_model.RunSettings(
    model="m",
    instructions="i",
    tools=TOOLS,
    resources=RESOURCES,
    options=b"\x00\xff",
    format=FORMAT,
    reasoning_effort="low",
    choice=CHOICE,
    parallel_calls=False,
    truncation=run_model.Truncation(last_messages=3),
    max_prompt_tokens=300,
    max_completion_tokens=400,
    seed=2**53 + 1,
)
RUN: Final = run_model.Run(
    id="run_1",
    thread_id="thread_1",
    assistant_id="asst_1",
    settings=RUN_SETTINGS,
    metadata={"a": "b"},
    state=run_model.RunState.FAILED,
    created_at=NOW,
    expires_at=LATER,
    started_at=NOW,
    ended_at=LATER,
    error=run_model.RunError(run_model.ErrorCode.RATE_LIMIT_EXCEEDED, "busy"),
    incomplete_reason=run_model.IncompleteReason.MAX_PROMPT_TOKENS,
    calls=(FunctionCall(call_id="call_1", name="f", arguments="{}"),),
    first_position=2,
    num_turns=3,
    num_hosted_calls=4,
    awaits_client=True,
    usage=USAGE,
)
STEP: Final = RunStep(
    id="step_1",
    run_id="run_1",
    thread_id="thread_1",
    assistant_id="asst_1",
    details=MessageCreation(message_id="msg_1"),
    state=StepState.EXPIRED,
    created_at=NOW,
    ended_at=LATER,
    error=run_model.RunError(run_model.ErrorCode.SERVER_ERROR, "broken"),
    usage=USAGE,
)
CALLS_STEP: Final = replace(
    STEP,
    details=ToolCalls(
        calls=(
            FunctionStepCall(call_id="call_1", name="f", arguments="{}", output="out"),
            FunctionStepCall(call_id="call_2", name="f"),
            FileSearchStepCall(call_id="call_3", results=(RESULT,)),
            FileSearchStepCall(call_id="call_4"),
        )
    ),
)
MESSAGE: Final = ThreadMessage(
    item=ITEM,
    thread_id="thread_1",
    assistant_id="asst_1",
    run_id="run_1",
    attachments=ATTACHMENTS,
    metadata={"a": "b"},
    completed_at=NOW,
    incomplete_at=LATER,
    incomplete_reason=IncompleteReason.MAX_TOKENS,
)
RUN_EVENTS: Final[tuple[RunEvent, ...]] = (
    ThreadCreated(
        thread=Thread(
            id="thread_1",
            settings=THREAD,
            created_at=NOW,
            revision=2,
            active_run_id="run_1",
            cut=5,
        )
    ),
    RunChanged(what="failed", run=RUN),
    StepChanged(what="expired", step=CALLS_STEP),
    MessageChanged(what="incomplete", message=MESSAGE),
    MessageDelta(message_id="msg_1", text="hé", annotations=(CITATION,)),
    CallDelta(
        step_id="step_1",
        index=1,
        tool=DraftKind.FUNCTION,
        item_id="fc_1",
        call_id="call_1",
        name="f",
        created_at=NOW,
    ),
    CallDelta(step_id="step_1", index=1, tool=DraftKind.HOSTED, arguments='{"a'),
    ReasoningDelta(item_id="rs_1", text="hm", created_at=NOW),
)
RESPONSE_SETTINGS: Final = response_model.ResponseSettings(
    model="m",
    instructions="i",
    tools=ALL_TOOLS,
    choice=CHOICE,
    parallel_tool_calls=False,
    format=FORMAT,
    verbosity="low",
    effort="high",
    summary="auto",
    is_reasoning_said=True,
    truncation=response_model.Truncation.AUTO,
    max_output_tokens=100,
    max_tool_calls=3,
    compact_threshold=1000,
    include=(Include.LOGPROBS, Include.SEALED_REASONING),
    background=True,
    store=False,
    metadata={"a": "b"},
    prompt_cache_key="k",
    safety_identifier="s",
    service_tier="auto",
    user="u",
)
WORK: Final = response_model.Work(
    num_turns=2,
    usage=USAGE,
    summaries=TurnUsage(prompt_tokens=1, cached_tokens=2, completion_tokens=3, reasoning_tokens=4),
    num_hosted_calls=5,
    awaits_client=True,
)
ENDING: Final = response_model.Ended(
    usage=USAGE,
    error=response_model.ResponseError(
        code="server_error",
        message="m",
        param="p",
        reason="ENGINE_CRASHED",
        metadata={"a": "b"},
        is_refusal=True,
    ),
    incomplete_reason=response_model.IncompleteReason.MAX_OUTPUT_TOKENS,
)
KEPT: Final = replace(
    ITEM,
    content=Message(
        role=Role.ASSISTANT,
        content=(
            Text(text="b", logprobs=(TokenLogprob(token="b", logprob=-1.5, raw=b"b"),)),
            *PARTS[1:],
        ),
    ),
)
SUMMARY: Final = response_model.Summary(text="so far", replaces_all=False, kept=(KEPT,))


class Stored(NamedTuple):
    """An object, and how it is written and read."""

    value: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


_RUN_EVENTS: Final = RunEventDocuments()
DOCUMENTS: Final[dict[str, Stored]] = {
    **{
        content.kind: Stored(
            content, item_queries._CONTENT.dump_json, item_queries._CONTENT.validate_json
        )
        for content in CONTENTS
    },
    **{
        f"run event {index}": Stored(event, _RUN_EVENTS.encode, _RUN_EVENTS.decode)
        for index, event in enumerate(RUN_EVENTS)
    },
    "run": Stored(RUN, run_document, lambda data: run_of(settings_document(RUN_SETTINGS), data)),
    "run settings": Stored(
        RUN_SETTINGS,
        settings_document,
        lambda data: run_of(data, run_document(RUN)).settings,
    ),
    "run step": Stored(STEP, step_document, step_of),
    "run step of calls": Stored(CALLS_STEP, step_document, step_of),
    "assistant settings": Stored(
        ASSISTANT,
        lambda value: assistant_queries._ASSISTANT_SETTINGS.dump_json(value, exclude={"options"}),
        assistant_queries._ASSISTANT_SETTINGS.validate_json,
    ),
    "thread settings": Stored(
        THREAD,
        assistant_queries._THREAD_SETTINGS.dump_json,
        assistant_queries._THREAD_SETTINGS.validate_json,
    ),
    "attachments": Stored(
        ATTACHMENTS,
        assistant_queries._ATTACHMENTS.dump_json,
        assistant_queries._ATTACHMENTS.validate_json,
    ),
    "response settings": Stored(
        RESPONSE_SETTINGS,
        response_queries._SETTINGS.dump_json,
        response_queries._SETTINGS.validate_json,
    ),
    "response work": Stored(
        WORK, response_queries._WORK.dump_json, response_queries._WORK.validate_json
    ),
    "response ending": Stored(
        ENDING, response_queries._ENDING.dump_json, response_queries._ENDING.validate_json
    ),
    "response ending before it ends": Stored(
        response_model.Ended(),
        response_queries._ENDING.dump_json,
        response_queries._ENDING.validate_json,
    ),
    "summary": Stored(
        SUMMARY, content_cipher._SUMMARY.dump_json, content_cipher._SUMMARY.validate_json
    ),
}
RESPONSE: Final = response_model.Response(
    id="resp_1",
    state=response_model.ResponseState.FAILED,
    created_at=NOW,
    completed_at=LATER,
    settings=RESPONSE_SETTINGS,
    model="m",
    options=b"",
    seed=7,
    previous_id="resp_0",
    work=WORK,
    ended=ENDING,
    output=(ITEM,),
)


def done(content: Content) -> Item:
    """An item of a response that is done."""
    return replace(ITEM, content=content)


def seen(content: Content) -> Item:
    """The item as its event shows it: without the number of the first result."""
    return done(replace(content, first=0) if isinstance(content, FileSearchCall) else content)


PLACE: Final = ("msg_1", 2)
RESPONSE_EVENTS_READ: Final[tuple[tuple[ResponseEvent, ResponseEvent], ...]] = (
    # A worker that resumes a response needs of these two only that they were sent.
    (LifeEvent(EventType.FAILED, RESPONSE), LifeEvent(EventType.FAILED, None)),
    (
        AnnotationEvent(
            EventType.ANNOTATION_ADDED, *PLACE, part_index=3, annotation_index=4, citation=CITATION
        ),
        StepEvent(EventType.ANNOTATION_ADDED, *PLACE),
    ),
    *(
        (
            ItemEvent(EventType.ITEM_DONE, 2, done(kind)),
            ItemEvent(EventType.ITEM_DONE, 2, seen(kind)),
        )
        for kind in CONTENTS
    ),
    *(
        (event, event)
        for event in (
            ItemEvent(EventType.ITEM_ADDED, 2, ITEM),
            PartEvent(EventType.PART_DONE, *PLACE, part_index=3, part=PARTS[0]),
            TextEvent(EventType.TEXT_DELTA, *PLACE, part_index=3, text="hé", logprobs=(LOGPROB,)),
            CallEvent(EventType.ARGUMENTS_DELTA, *PLACE, text='{"a'),
            CallEvent(EventType.ARGUMENTS_DONE, *PLACE, text="{}", name="f"),
            StepEvent(EventType.SEARCHING, *PLACE),
            StepEvent(EventType.COMPACTING, *PLACE),
        )
    ),
)


def golden() -> dict[str, Any]:
    """What release 0.1 wrote: documents as text, response events in hex."""
    stored: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return stored


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_written_and_read_as_before(name: str) -> None:
    """A field that is not read is lost; one written differently is unknown to older processes."""
    case, stored = DOCUMENTS[name], golden()["documents"][name]

    assert case.decode(stored.encode()) == case.value
    assert case.encode(case.value).decode() == stored


@pytest.mark.parametrize("index", range(len(RESPONSE_EVENTS_READ)))
def test_events_of_responses_are_written_and_read_as_before(index: int) -> None:
    """Streams that were written before an upgrade are read, and continued, after it."""
    written, read = RESPONSE_EVENTS_READ[index]
    stored = bytes.fromhex(golden()["response events"][index])

    assert RESPONSE_EVENTS.decode(stored) == read
    assert RESPONSE_EVENTS.encode(written) == stored


def test_every_kind_of_stored_event_and_item_has_an_example() -> None:
    """A new kind needs a golden document."""
    events = {type(event) for event in RUN_EVENTS}

    assert {type(content) for content in CONTENTS} == set(get_args(Content))
    assert events == set(get_args(RunEvent))
    assert {type(event) for event, _ in RESPONSE_EVENTS_READ} == set(get_args(ResponseEvent))
    assert len(golden()["documents"]) == len(DOCUMENTS)
    assert len(golden()["response events"]) == len(RESPONSE_EVENTS_READ)
