"""Events of runs as stored in their streams.

They contain all output of the model, also what the Assistants API does not show, since the drafts
of an interrupted turn are restored from them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from control_svc.agent.drafts import Draft, DraftKind
from control_svc.assistants.message_model import ThreadMessage
from control_svc.assistants.model import Thread
from control_svc.items.model import FileCitation
from control_svc.runs.model import Run
from control_svc.runs.steps import RunStep


@dataclass(frozen=True, kw_only=True)
class ThreadCreated:
    """The first event of a run that was created with its thread."""

    kind: Literal["thread"] = "thread"
    thread: Thread


@dataclass(frozen=True, kw_only=True)
class RunChanged:
    """The run was created or its state changed."""

    kind: Literal["run"] = "run"
    what: str
    """"created", or the new state."""
    run: Run


@dataclass(frozen=True, kw_only=True)
class StepChanged:
    """A step was created or its state changed."""

    kind: Literal["step"] = "step"
    what: str
    """"created", or the new state."""
    step: RunStep


@dataclass(frozen=True, kw_only=True)
class MessageChanged:
    """A message was created or its state changed."""

    kind: Literal["message"] = "message"
    what: str
    """"created", or the new state."""
    message: ThreadMessage


@dataclass(frozen=True, kw_only=True)
class MessageDelta:
    """Text or citations were added to a message."""

    kind: Literal["message_delta"] = "message_delta"
    message_id: str
    text: str
    annotations: tuple[FileCitation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CallDelta:
    """A call was added to a step, or text to its arguments."""

    kind: Literal["call_delta"] = "call_delta"
    step_id: str
    index: int
    """Index among the calls of the step."""
    tool: DraftKind
    """function or hosted."""
    item_id: str = ""
    """Set only in the first delta of a call, as are `call_id`, `name` and `created_at`."""
    call_id: str = ""
    name: str = ""
    created_at: datetime | None = None
    arguments: str = ""


@dataclass(frozen=True, kw_only=True)
class ReasoningDelta:
    """Text was added to reasoning."""

    kind: Literal["reasoning_delta"] = "reasoning_delta"
    item_id: str
    text: str
    created_at: datetime


RunEvent = (
    ThreadCreated
    | RunChanged
    | StepChanged
    | MessageChanged
    | MessageDelta
    | CallDelta
    | ReasoningDelta
)


def restore_drafts(events: Iterable[RunEvent]) -> list[Draft]:
    """Restore the drafts of a turn from its events."""
    drafts: list[Draft] = []
    for event in events:
        match event:
            case MessageChanged(what="created", message=message):
                _add_draft(drafts, message.id, DraftKind.MESSAGE, message.item.created_at)
            case MessageDelta(text=text):
                drafts[-1].text += text
            case ReasoningDelta(item_id=item_id):
                if not drafts or drafts[-1].id != item_id:
                    _add_draft(drafts, item_id, DraftKind.REASONING, event.created_at)
                drafts[-1].text += event.text
            case CallDelta():
                if event.created_at is not None:
                    draft = _add_draft(drafts, event.item_id, event.tool, event.created_at)
                    draft.name, draft.call_id = event.name, event.call_id
                    draft.call_index = event.index
                drafts[-1].text += event.arguments
            case _:  # not output of the model
                pass
    return drafts


def _add_draft(drafts: list[Draft], item_id: str, kind: DraftKind, created_at: datetime) -> Draft:
    """Add a draft; the previous one is complete."""
    if drafts:
        drafts[-1].is_done = True
    draft = Draft(index=len(drafts), id=item_id, kind=kind, created_at=created_at)
    drafts.append(draft)
    return draft


class RunEventCodec(Protocol):
    """Serialization of events for the event log."""

    def encode(self, event: RunEvent) -> bytes:
        """Serialize an event."""

    def decode(self, data: bytes) -> RunEvent:
        """Deserialize an event."""
