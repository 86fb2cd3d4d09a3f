"""Messages, token counts and models as Anthropic's objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from corral.inference.v1 import generation_pb2, inference_service_pb2, model_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import Field
from typing_extensions import TypedDict

from dialects.anthropic.conversation import TOOL_USE_PREFIX
from dialects.anthropic.message_request import CreateMessageBody
from dialects.anthropic.signatures import write_signature
from dialects.shared.fields import WireModel, parse_integer, validate
from dialects.shared.ids import random_suffix
from dialects.shared.json_body import tool_input
from dialects.shared.wire import From, writer
from svc_kit.errors import InvalidField

MAX_PAGE: Final = 1000
StopReason = Literal[
    "end_turn", "max_tokens", "tool_use", "stop_sequence", "model_context_window_exceeded"
]
BlockKind = Literal["text", "thinking", "tool_use"]
_REASONS: Final[Mapping[int, StopReason]] = {
    generation_pb2.FINISH_REASON_STOP: "end_turn",
    generation_pb2.FINISH_REASON_LENGTH: "max_tokens",
    generation_pb2.FINISH_REASON_TOOL_CALLS: "tool_use",
}


class AnthropicText(TypedDict):
    type: Literal["text"]
    text: str


class AnthropicThinking(TypedDict):
    """A thought; without its text if the request does not show it."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class AnthropicToolUse(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


AnthropicBlock = AnthropicText | AnthropicThinking | AnthropicToolUse


class AnthropicOutputTokens(TypedDict):
    """Output tokens that are thoughts."""

    thinking_tokens: int


class AnthropicUsage(TypedDict):
    """Token counts. Cached tokens are not among the input tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: AnthropicOutputTokens
    service_tier: Literal["standard"]


class AnthropicMessage(TypedDict):
    """A message; in the first event of a stream without its content and its end."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: Sequence[AnthropicBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None
    usage: AnthropicUsage


def message_id() -> str:
    return f"msg_{random_suffix()}"


def tool_use_id(call_id: str) -> str:
    """The id of a tool_use block for the id of a call."""
    return f"{TOOL_USE_PREFIX}{call_id.removeprefix('call_')}"


class MessageState:
    """What the events of a call say about a message beside its content."""

    def __init__(self, body: CreateMessageBody) -> None:
        self.id = message_id()
        self.model = body.model
        self.stop_reason: StopReason | None = None
        self.stop_sequence: str | None = None
        self._stops = frozenset(body.stop_sequences or ())
        self._max_tokens = body.max_tokens
        self._is_clamped = False
        self._usage = generation_pb2.Usage()

    def accept(self, accepted: generation_pb2.Accepted) -> None:
        """Note the model and the limit in use."""
        self.model = accepted.model or self.model
        self._is_clamped = 0 < accepted.max_tokens < self._max_tokens
        self._usage.prompt_tokens = accepted.prompt_tokens

    def start(self, started: generation_pb2.Started) -> None:
        """Note what the cache saved."""
        self._usage.cached_tokens = started.cached_tokens

    def finish(self, finished: generation_pb2.ChoiceFinished) -> None:
        """Note why the message ended."""
        self.stop_reason = _REASONS[finished.reason]
        if self.stop_reason == "max_tokens" and self._is_clamped:
            self.stop_reason = "model_context_window_exceeded"
        if self.stop_reason == "end_turn" and finished.stop_text in self._stops:
            self.stop_reason, self.stop_sequence = "stop_sequence", finished.stop_text

    def complete(self, done: generation_pb2.Done) -> None:
        """Note the final counts."""
        self._usage = done.usage

    def usage(self) -> AnthropicUsage:
        """The token counts so far."""
        usage = self._usage
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
            "service_tier": "standard",
        }

    def object(self, content: Sequence[AnthropicBlock]) -> AnthropicMessage:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": self.stop_reason,
            "stop_sequence": self.stop_sequence,
            "stop_details": None,
            "usage": self.usage(),
        }


@dataclass(slots=True)
class _Block:
    """A block while its deltas arrive: a text, a thought, or a call if it has an id."""

    kind: BlockKind
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)


class CollectedMessage:
    """Collects the events of the Chat call of a body into a message."""

    def __init__(self, body: CreateMessageBody) -> None:
        self._state = MessageState(body)
        self._shows_thinking = body.shows_thinking
        self._blocks: list[_Block] = []

    def add(self, message: inference_service_pb2.ChatResponse, _call: int = 0) -> None:
        match message.WhichOneof("event"):
            case "delta":
                self._add_delta(message.delta)
            case "accepted":
                self._state.accept(message.accepted)
            case "finished":
                self._state.finish(message.finished)
            case "done":
                self._state.complete(message.done)

    def as_object(self) -> AnthropicMessage:
        return self._state.object([self._write(block) for block in self._blocks])

    def _add_delta(self, delta: inference_service_pb2.ChatDelta) -> None:
        if delta.reasoning:
            self._last("thinking").pieces.append(delta.reasoning)
        if delta.content:
            self._last("text").pieces.append(delta.content)
        for call in delta.tool_calls:
            if call.id:
                self._blocks.append(_Block("tool_use", tool_use_id(call.id), call.name))
            self._blocks[-1].pieces.append(call.arguments_json)

    def _last(self, kind: BlockKind) -> _Block:
        if not self._blocks or self._blocks[-1].kind != kind:
            self._blocks.append(_Block(kind))
        return self._blocks[-1]

    def _write(self, block: _Block) -> AnthropicBlock:
        text = "".join(block.pieces)
        if block.kind == "text":
            return {"type": "text", "text": text}
        if block.kind == "tool_use":
            arguments = tool_input(text)
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": arguments}
        if self._shows_thinking:
            return {"type": "thinking", "thinking": text, "signature": write_signature()}
        return {"type": "thinking", "thinking": "", "signature": write_signature(text)}


class AnthropicTokenCount(TypedDict):
    """The response of POST /v1/messages/count_tokens."""

    input_tokens: Annotated[int, From("prompt_tokens")]


token_count = writer(inference_service_pb2.CountTokensResponse, AnthropicTokenCount)


def rfc3339(time: Timestamp) -> str:
    """A time as text; 1970 if it is not known."""
    text = datetime.fromtimestamp(time.seconds, UTC).isoformat(timespec="seconds")
    return text.replace("+00:00", "Z")


class PageQuery(WireModel):
    """The query of a list with cursors in both directions."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 20
    after_id: str | None = None
    before_id: str | None = None


def parse_page_query(query: Mapping[str, str]) -> PageQuery:
    """Validate a query. Unknown and empty parameters are ignored. Raises DomainErrors."""
    known: dict[str, Any] = {
        name: query[name] for name in PageQuery.model_fields if query.get(name)
    }
    if "limit" in known:
        known["limit"] = parse_integer(known["limit"])
    if "after_id" in known and "before_id" in known:
        raise InvalidField(field="before_id", problem="it cannot be combined with 'after_id'")
    return validate(PageQuery, known)


class AnthropicModel(TypedDict):
    type: Literal["model"]
    id: Annotated[str, From("name")]
    display_name: Annotated[str, From(".", lambda model: model.description or model.name)]
    created_at: Annotated[str, From("load_time", rfc3339)]
    lifecycle: Literal["active"]
    max_input_tokens: Annotated[int | None, From("resolved_limits.context_tokens")]
    max_tokens: Annotated[int | None, From("resolved_limits.context_tokens")]


class PageEnds(TypedDict):
    """Whether a page is followed by others, and its first and last object."""

    has_more: bool
    first_id: str | None
    last_id: str | None


class AnthropicModelList(PageEnds):
    data: list[AnthropicModel]


model_object = writer(model_pb2.Model, AnthropicModel)


def model_page(models: Sequence[model_pb2.Model], query: PageQuery) -> AnthropicModelList:
    """A page of all models. A cursor that names no model is an error. Raises InvalidField."""
    first, last = 0, len(models)
    names = [model.name for model in models]
    if query.after_id:
        first = _position(names, "after_id", query.after_id) + 1
    if query.before_id:
        last = _position(names, "before_id", query.before_id)
        first = max(0, last - query.limit)
    data = [model_object(model) for model in models[first:last][: query.limit]]
    has_more = first > 0 if query.before_id else first + len(data) < last
    return {"data": data, **page_ends([each["id"] for each in data], has_more=has_more)}


def page_ends(ids: Sequence[str], *, has_more: bool) -> PageEnds:
    """What follows the objects of a page with these ids."""
    return {
        "has_more": has_more,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }


def _position(names: Sequence[str], field_name: str, cursor: str) -> int:
    if cursor not in names:
        raise InvalidField(field=field_name, problem="it is not the id of a model")
    return names.index(cursor)
