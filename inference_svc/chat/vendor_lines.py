"""Lines at the begin of system prompts that are not for the model: known programs write them for
the servers of their vendor, which take them out. As they change, no prompt would share a prefix
with the one before.

Dates and the like, which models are to read, are no such lines: without them, or in another place,
the prompt would be another one.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final, Literal

from inference_svc.chat.conversation import Conversation, Message, Part, Role, TextPart

VendorLine = Literal["claude-code-billing-header"]
VENDOR_LINES: Final[Mapping[str, str]] = {
    "claude-code-billing-header": "x-anthropic-billing-header:",
}
"""How the lines begin. The header of Claude Code is a text of its own before the system prompt, or
after a router the first line of it. Its `cc_version` ends with a digest of the
first message, and up to 2.1.180 its `cch` is another one in each request."""
_SYSTEM: Final = (Role.SYSTEM, Role.DEVELOPER)


def without_vendor_lines(conversation: Conversation, names: Collection[str]) -> Conversation:
    """The conversation without the lines with these names. A system message that has nothing else
    is left out, unless it is the only message."""
    begins = tuple(VENDOR_LINES[name] for name in names)
    if not any(_has_line(message, begins) for message in conversation.messages):
        return conversation
    messages = tuple(_without_lines(conversation.messages, begins))
    return replace(conversation, messages=messages or conversation.messages)


def _has_line(message: Message, begins: tuple[str, ...]) -> bool:
    return message.role in _SYSTEM and any(
        isinstance(part, TextPart) and part.text.startswith(begins) for part in message.parts
    )


def _without_lines(messages: Collection[Message], begins: tuple[str, ...]) -> Iterator[Message]:
    for message in messages:
        if not _has_line(message, begins):
            yield message
        elif parts := tuple(_rest(message.parts, begins)):
            yield replace(message, parts=parts)


def _rest(parts: Collection[Part], begins: tuple[str, ...]) -> Iterator[Part]:
    for part in parts:
        text = part.text if isinstance(part, TextPart) else ""
        if not text.startswith(begins):
            yield part
            continue
        while text.startswith(begins):
            text = text.partition("\n")[2]
        if text:
            yield TextPart(text)
