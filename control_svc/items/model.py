"""Items: messages, calls and outputs in threads, conversations and responses.

An item is a document, read and written whole. Roles and kinds have OpenAI's names.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

TEXT_BYTES_A_MESSAGE: Final = 1_048_576
"""The most text of one message, as at OpenAI (there in characters)."""


class Role(StrEnum):
    """The role of a message."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    DEVELOPER = "developer"


class ItemStatus(StrEnum):
    """How far an item has come."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, kw_only=True)
class FileCitation:
    """A place of a text that rests on a file."""

    file_id: str
    filename: str
    marker: str
    """The characters of the text that cite."""
    start: int
    """Where the marker begins, in characters."""
    end: int
    """Where it has ended."""


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """A token and how probable it was."""

    token: str
    logprob: float
    raw: bytes = b""
    top: tuple["TokenLogprob", ...] = ()
    """The most probable alternatives, best first; of theirs none."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """Text; annotations and log probabilities are the assistant's only."""

    kind: Literal["text"] = "text"
    text: str
    annotations: tuple[FileCitation, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A refusal."""

    kind: Literal["refusal"] = "refusal"
    refusal: str


@dataclass(frozen=True, kw_only=True)
class Image:
    """A picture: by its URL or as a file, never both."""

    kind: Literal["image"] = "image"
    url: str = ""
    file_id: str = ""
    detail: str = ""
    """auto, low or high; empty: auto."""


@dataclass(frozen=True, kw_only=True)
class FileInput:
    """A document in a message: as a file, or as a data URL."""

    kind: Literal["file"] = "file"
    file_id: str = ""
    data_url: str = ""
    filename: str = ""


Part = Text | Refusal | Image | FileInput


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message."""

    kind: Literal["message"] = "message"
    role: Role
    content: tuple[Part, ...]

    @property
    def text(self) -> str:
        """All text of it."""
        return "".join(part.text for part in self.content if isinstance(part, Text))


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """The model calls a function of the client's."""

    kind: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


@dataclass(frozen=True, kw_only=True)
class FunctionCallOutput:
    """What the function gave."""

    kind: Literal["function_call_output"] = "function_call_output"
    call_id: str
    output: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class CustomToolCall:
    """The model calls a tool of the client's that takes free text."""

    kind: Literal["custom_tool_call"] = "custom_tool_call"
    call_id: str
    name: str
    input: str


@dataclass(frozen=True, kw_only=True)
class CustomToolCallOutput:
    """What that tool gave."""

    kind: Literal["custom_tool_call_output"] = "custom_tool_call_output"
    call_id: str
    output: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Reasoning:
    """What the model thought."""

    kind: Literal["reasoning"] = "reasoning"
    text: str
    sealed: str = ""
    """The same for callers that keep it themselves; only this installation can open it."""


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """The compaction."""

    kind: Literal["compaction"] = "compaction"
    sealed: str
    """The encrypted summary."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A passage that a search found."""

    file_id: str
    filename: str
    score: float
    """0 to 1."""
    text: str
    attributes_json: str = "{}"


@dataclass(frozen=True, kw_only=True)
class FileSearchCall:
    """The model searched the caller's files."""

    kind: Literal["file_search_call"] = "file_search_call"
    call_id: str
    queries: tuple[str, ...]
    results: tuple[SearchResult, ...] = ()
    problem: str = ""
    """Why it failed; empty: it did not."""
    first: int = 0
    """The number by which the model names the first of the results; the others follow."""


@dataclass(frozen=True, kw_only=True)
class McpToolDescription:
    """A tool that a remote server offers."""

    name: str
    description: str
    input_schema_json: str
    annotations_json: str = ""


@dataclass(frozen=True, kw_only=True)
class McpListTools:
    """The tools of an MCP server, listed once and used by later turns."""

    kind: Literal["mcp_list_tools"] = "mcp_list_tools"
    server_label: str
    tools: tuple[McpToolDescription, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class McpCall:
    """The model called a tool of a remote server."""

    kind: Literal["mcp_call"] = "mcp_call"
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    """None: it was started and its end is unknown."""
    problem: str = ""
    approval_request_id: str = ""


@dataclass(frozen=True, kw_only=True)
class McpApprovalRequest:
    """A call that waits for approval."""

    kind: Literal["mcp_approval_request"] = "mcp_approval_request"
    server_label: str
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class McpApprovalResponse:
    """The approval or refusal of a call."""

    kind: Literal["mcp_approval_response"] = "mcp_approval_response"
    approval_request_id: str
    approve: bool
    reason: str = ""


Content = (
    Message
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | Reasoning
    | Compaction
    | FileSearchCall
    | McpListTools
    | McpCall
    | McpApprovalRequest
    | McpApprovalResponse
)
"""What an item can be."""
ITEM_PREFIXES: Final[dict[type[Content], str]] = {
    Message: "msg_",
    FunctionCall: "fc_",
    FunctionCallOutput: "fco_",
    CustomToolCall: "ctc_",
    CustomToolCallOutput: "ctco_",
    Reasoning: "rs_",
    Compaction: "cmp_",
    FileSearchCall: "fs_",
    McpListTools: "mcpl_",
    McpCall: "mcp_",
    McpApprovalRequest: "mcpr_",
    McpApprovalResponse: "mcpa_",
}
"""How the ids of each kind begin."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """An item as it is stored."""

    id: str
    status: ItemStatus
    created_at: datetime
    content: Content

    @property
    def kind(self) -> str:
        """Which of the kinds it is."""
        return self.content.kind

    def with_content(self, content: Content, status: ItemStatus = ItemStatus.COMPLETED) -> "Item":
        """The item once it is known what it became."""
        return replace(self, content=content, status=status)


@dataclass(frozen=True)
class TimelineItem:
    """An item in its timeline."""

    position: int
    """From 0, growing, with holes where items were taken out."""
    item: Item


def plain_text(parts: Sequence[Part]) -> str:
    """The text of parts, in order."""
    return "".join(part.text for part in parts if isinstance(part, Text))


@dataclass(frozen=True)
class ItemFilter:
    """Which items of a timeline; an empty one is all."""

    kinds: Collection[str] = field(default_factory=tuple)
    origin: str = ""
    """Those that this run or response made."""
    is_input: bool = False
    """Those that none made, but a caller gave."""


ALL_ITEMS = ItemFilter()
INPUT_ITEMS = ItemFilter(is_input=True)


def rename_ids(items: Sequence[Item], names: Mapping[str, str]) -> list[Item]:
    """Rename ids in items and in approvals and calls that refer to them."""

    def about(item: Item) -> Item:
        content = item.content
        if not isinstance(content, McpApprovalResponse | McpCall):
            return item
        request = content.approval_request_id
        return item.with_content(
            replace(content, approval_request_id=names.get(request, request)), item.status
        )

    return [about(item) for item in items]
