"""Content blocks of messages. Keys that are not listed here are ignored, because clients send back
blocks as they got them, from this server or another one."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from dialects.shared.fields import BY_KIND, WireModel
from dialects.shared.parameters import TAG_PREFIX, Ignored, Policy

CACHE_CONTROL: Final[Policy] = {
    "cache_control": Ignored("every prefix is cached without marks, as long as there is memory")
}


class Part(WireModel):
    """A part of a conversation, whose unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore")


class TextBlock(Part):
    policy: ClassVar[Policy] = CACHE_CONTROL

    type: Literal["text"]
    text: str


class InlineSource(Part):
    type: Literal["base64"]
    media_type: str = Field(description="Its MIME type.")
    data: str = Field(description="The file in base64.")


class UrlSource(Part):
    """A file to fetch, of a host that the operator allows."""

    type: Literal["url"]
    url: str = Field(description="An address, or a data URL.")


class TextSource(Part):
    """A document of plain text."""

    type: Literal["text"]
    data: str
    media_type: str = "text/plain"


class OtherSource(Part):
    """A source that is not supported, such as a file of Anthropic's."""

    type: str


def _by_type(*kinds: str) -> Discriminator:
    """Select the model of a union by `type`; that of other types has the tag "~other"."""

    def tag(value: object) -> str:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return TAG_PREFIX + (kind if kind in kinds else "other")

    return Discriminator(tag)


class ImageBlock(Part):
    """A picture."""

    policy: ClassVar[Policy] = CACHE_CONTROL

    type: Literal["image"]
    source: Annotated[
        Annotated[InlineSource, Tag("~base64")]
        | Annotated[UrlSource, Tag("~url")]
        | Annotated[OtherSource, Tag("~other")],
        _by_type("base64", "url"),
    ]


class ContentSource(Part):
    """A document of texts and pictures."""

    type: Literal["content"]
    content: Annotated[
        Annotated[str, Tag("~string")]
        | Annotated[
            list[
                Annotated[
                    Annotated[TextBlock, Tag("~text")] | Annotated[ImageBlock, Tag("~image")],
                    _by_type("text", "image"),
                ]
            ],
            Tag("~array"),
        ],
        BY_KIND,
    ]


class DocumentBlock(Part):
    """A PDF or a text."""

    policy: ClassVar[Policy] = CACHE_CONTROL

    type: Literal["document"]
    source: Annotated[
        Annotated[InlineSource, Tag("~base64")]
        | Annotated[UrlSource, Tag("~url")]
        | Annotated[TextSource, Tag("~text")]
        | Annotated[ContentSource, Tag("~content")]
        | Annotated[OtherSource, Tag("~other")],
        _by_type("base64", "url", "text", "content"),
    ]
    title: str | None = Field(None, description="The model reads it.")
    context: str | None = Field(None, description="Text about the document, for the model.")


class SearchResultBlock(Part):
    """A result of the caller's search."""

    policy: ClassVar[Policy] = CACHE_CONTROL

    type: Literal["search_result"]
    source: str
    title: str
    content: list[TextBlock]


class ToolReferenceBlock(Part):
    """A tool that the caller's search has found, in the result of its call. From here on the model
    reads the tool."""

    type: Literal["tool_reference"]
    tool_name: str = Field(min_length=1)


class OtherBlock(Part):
    """A block of another kind. Those of the assistant, such as calls of Anthropic's own tools, are
    ignored; others are refused."""

    type: str


InnerBlock = Annotated[
    Annotated[TextBlock, Tag("~text")]
    | Annotated[ImageBlock, Tag("~image")]
    | Annotated[DocumentBlock, Tag("~document")]
    | Annotated[SearchResultBlock, Tag("~search_result")]
    | Annotated[ToolReferenceBlock, Tag("~tool_reference")]
    | Annotated[OtherBlock, Tag("~other")],
    _by_type("text", "image", "document", "search_result", "tool_reference"),
]


class ToolUseBlock(Part):
    policy: ClassVar[Policy] = CACHE_CONTROL

    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: dict[str, Any] = Field(description="The arguments.")


class ToolResultBlock(Part):
    """The result of a call, in the user's next message."""

    policy: ClassVar[Policy] = CACHE_CONTROL

    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1)
    content: (
        Annotated[
            Annotated[str, Tag("~string")] | Annotated[list[InnerBlock], Tag("~array")], BY_KIND
        ]
        | None
    ) = Field(None, description="Text or blocks. Default: empty.")
    is_error: bool | None = Field(None, description="The model reads that the call failed.")


class ThinkingBlock(Part):
    """A thought of the assistant. Signatures are opaque; none is refused."""

    type: Literal["thinking"]
    thinking: str | None = None
    signature: str | None = None


class RedactedThinkingBlock(Part):
    """A hidden thought. It is ignored unless this server wrote it."""

    type: Literal["redacted_thinking"]
    data: str | None = None


Block = Annotated[
    Annotated[TextBlock, Tag("~text")]
    | Annotated[ImageBlock, Tag("~image")]
    | Annotated[DocumentBlock, Tag("~document")]
    | Annotated[SearchResultBlock, Tag("~search_result")]
    | Annotated[ToolUseBlock, Tag("~tool_use")]
    | Annotated[ToolResultBlock, Tag("~tool_result")]
    | Annotated[ThinkingBlock, Tag("~thinking")]
    | Annotated[RedactedThinkingBlock, Tag("~redacted_thinking")]
    | Annotated[OtherBlock, Tag("~other")],
    _by_type(
        "text",
        "image",
        "document",
        "search_result",
        "tool_use",
        "tool_result",
        "thinking",
        "redacted_thinking",
    ),
]
Content = Annotated[Annotated[str, Tag("~string")] | Annotated[list[Block], Tag("~array")], BY_KIND]


class MessageParam(Part):
    """A turn. Neighbours of one role are joined."""

    role: Literal["user", "assistant", "system"] = Field(
        description="A system turn after the first message is read as the user's."
    )
    content: Content
