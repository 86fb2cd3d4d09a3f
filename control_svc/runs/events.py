"""Events of runs, as their streams store them.

Drafts of an interrupted turn are rebuilt from them, so they contain everything that the model
produced, also what the Assistants API does not show.
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
    """The first event where the thread was made with the run."""

    kind: Literal["thread"] = "thread"
    thread: Thread


@dataclass(frozen=True, kw_only=True)
class RunChanged:
    """The run has come to be, or is in another state."""

    kind: Literal["run"] = "run"
    what: str
    """"created", or its state."""
    run: Run


@dataclass(frozen=True, kw_only=True)
class StepChanged:
    """A step has come to be, or is in another state."""

    kind: Literal["step"] = "step"
    what: str
    """"created", or its state."""
    step: RunStep


@dataclass(frozen=True, kw_only=True)
class MessageChanged:
    """A message has come to be, or is in another state."""

    kind: Literal["message"] = "message"
    what: str
    """"created", or its state."""
    message: ThreadMessage


@dataclass(frozen=True, kw_only=True)
class MessageDelta:
    """A message has grown."""

    kind: Literal["message_delta"] = "message_delta"
    message_id: str
    text: str
    annotations: tuple[FileCitation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CallDelta:
    """A call of a step has begun, or its arguments have grown."""

    kind: Literal["call_delta"] = "call_delta"
    step_id: str
    index: int
    """Among the calls of the step."""
    tool: DraftKind
    """function or hosted."""
    item_id: str = ""
    """Empty but in the first piece, as are the next three."""
    call_id: str = ""
    name: str = ""
    created_at: datetime | None = None
    arguments: str = ""


@dataclass(frozen=True, kw_only=True)
class ReasoningDelta:
    """A thought has grown."""

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


def drafts_of(events: Iterable[RunEvent]) -> list[Draft]:
    """Rebuild the drafts of a turn from its events."""
    drafts: list[Draft] = []
    for event in events:
        match event:
            case MessageChanged(what="created", message=message):
                _begin(drafts, message.id, DraftKind.MESSAGE, message.item.created_at)
            case MessageDelta(text=text):
                drafts[-1].text += text
            case ReasoningDelta():
                _grow_thought(drafts, event)
            case CallDelta():
                _grow_call(drafts, event)
            case _:  # what says nothing of the model's
                pass
    return drafts


def _begin(drafts: list[Draft], item_id: str, kind: DraftKind, created_at: datetime) -> Draft:
    """A new draft; the one before it is whole."""
    if drafts:
        drafts[-1].is_done = True
    draft = Draft(index=len(drafts), id=item_id, kind=kind, created_at=created_at)
    drafts.append(draft)
    return draft


def _grow_thought(drafts: list[Draft], event: ReasoningDelta) -> None:
    if not drafts or drafts[-1].id != event.item_id:
        _begin(drafts, event.item_id, DraftKind.REASONING, event.created_at)
    drafts[-1].text += event.text


def _grow_call(drafts: list[Draft], event: CallDelta) -> None:
    if event.created_at is not None:
        draft = _begin(drafts, event.item_id, event.tool, event.created_at)
        draft.name, draft.call_id, draft.call_index = event.name, event.call_id, event.index
    drafts[-1].text += event.arguments


class RunEventCodec(Protocol):
    """Events as the log keeps them."""

    def encode(self, event: RunEvent) -> bytes:
        """An event for the log."""

    def decode(self, data: bytes) -> RunEvent:
        """An event of the log."""
