"""Events of runs, as they are stored in their streams and sent to clients.

They contain all output of the model, also what the Assistants API does not show, since the drafts
of an interrupted turn are restored from them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from corral.control.v1.run_event_pb2 import (
    CallDelta,
    MessageChanged,
    MessageDelta,
    ReasoningDelta,
    RunChanged,
    RunEvent,
    StepChanged,
)
from corral.control.v1.run_pb2 import Run as RunMessage
from pydantic import ConfigDict, TypeAdapter

from control_svc.agent.drafts import Draft, DraftKind, restore_draft
from control_svc.assistants.message_model import ThreadMessage
from control_svc.assistants.model import Thread
from control_svc.assistants.proto import MESSAGE, THREAD
from control_svc.items.model import FileCitation
from control_svc.items.proto import CITATION
from control_svc.runs.model import Run
from control_svc.runs.proto import RUN, STEP
from control_svc.runs.steps import RunStep
from svc_kit.rpc.message_mapper import encode_timestamp

CREATED: Final = "created"


def thread_created(thread: Thread) -> RunEvent:
    """The first event of a run that is created with its thread."""
    return RunEvent(thread_created=THREAD.to_message(thread))


def run_changed(run: Run, what: str = "") -> RunEvent:
    """The event of a run's new state, or of `what`."""
    return RunEvent(run_changed=RunChanged(what=what or run.state.value, run=RUN.to_message(run)))


def step_changed(step: RunStep, what: str = "") -> RunEvent:
    """The event of a step's new state, or of `what`."""
    return RunEvent(
        step_changed=StepChanged(what=what or step.state.value, step=STEP.to_message(step))
    )


def message_changed(message: ThreadMessage, what: str = "") -> RunEvent:
    """The event of a message's new state, or of `what`."""
    what = what or message.item.status.value
    return RunEvent(message_changed=MessageChanged(what=what, message=MESSAGE.to_message(message)))


def message_delta(message_id: str, text: str, citations: Iterable[FileCitation] = ()) -> RunEvent:
    return RunEvent(
        message_delta=MessageDelta(
            message_id=message_id, text=text, citations=map(CITATION.to_message, citations)
        )
    )


def requires_action(event: RunEvent) -> bool:
    """Whether the run waits for outputs after the event."""
    return event.run_changed.run.state == RunMessage.STATE_REQUIRES_ACTION


def restore_drafts(events: Iterable[bytes]) -> list[Draft]:
    drafts: list[Draft] = []
    for event in map(decode_event, events):
        match event.WhichOneof("event"):
            case "message_changed" if event.message_changed.what == CREATED:
                message = event.message_changed.message
                restore_draft(drafts, message.id, DraftKind.MESSAGE, message.create_time)
            case "message_delta":
                drafts[-1].text += event.message_delta.text
            case "reasoning_delta":
                delta = event.reasoning_delta
                if not drafts or drafts[-1].id != delta.item_id:
                    restore_draft(drafts, delta.item_id, DraftKind.REASONING, delta.create_time)
                drafts[-1].text += delta.text
            case "call_delta":
                call = event.call_delta
                if call.HasField("create_time"):
                    kind = DraftKind.HOSTED if call.is_hosted else DraftKind.FUNCTION
                    created = call.create_time
                    restore_draft(drafts, call.item_id, kind, created, call.name, call.call_id)
                    drafts[-1].call_index = call.index
                drafts[-1].text += call.arguments_json
            case _:  # not output of the model
                pass
    return drafts


# ---- events of release 0.1, which are read until `streams.keep_s` after the upgrade


@dataclass(frozen=True, kw_only=True)
class _JsonEvent:
    """An event as JSON. Each kind has some of the fields."""

    kind: str
    what: str = ""
    thread: Thread | None = None
    run: Run | None = None
    step: RunStep | None = None
    message: ThreadMessage | None = None
    message_id: str = ""
    text: str = ""
    annotations: tuple[FileCitation, ...] = ()
    step_id: str = ""
    index: int = 0
    tool: DraftKind | None = None
    item_id: str = ""
    call_id: str = ""
    name: str = ""
    created_at: datetime | None = None
    arguments: str = ""


_JSON_EVENT: Final[TypeAdapter[_JsonEvent | None]] = TypeAdapter(
    _JsonEvent | None, config=ConfigDict(val_json_bytes="base64")
)
"""A union, because pydantic does not accept `config` for a dataclass."""


def decode_event(data: bytes) -> RunEvent:
    """Deserialize an event. No serialized proto begins with a brace."""
    event = _JSON_EVENT.validate_json(data) if data.startswith(b"{") else None
    if event is None:
        return RunEvent.FromString(data)
    created = event.created_at and encode_timestamp(event.created_at)
    match event:
        case _JsonEvent(thread=Thread() as thread):
            return thread_created(thread)
        case _JsonEvent(run=Run() as run, what=what):
            return run_changed(run, what)
        case _JsonEvent(step=RunStep() as step, what=what):
            return step_changed(step, what)
        case _JsonEvent(message=ThreadMessage() as message, what=what):
            return message_changed(message, what)
        case _JsonEvent(kind="message_delta"):
            return message_delta(event.message_id, event.text, event.annotations)
        case _JsonEvent(kind="reasoning_delta"):
            delta = ReasoningDelta(item_id=event.item_id, text=event.text, create_time=created)
            return RunEvent(reasoning_delta=delta)
        case _:
            call = CallDelta(
                step_id=event.step_id,
                index=event.index,
                call_id=event.call_id,
                name=event.name,
                arguments_json=event.arguments,
                is_hosted=event.tool is DraftKind.HOSTED,
                item_id=event.item_id,
                create_time=created,
            )
            return RunEvent(call_delta=call)
