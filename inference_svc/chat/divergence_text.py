"""Describes the first difference between a prompt and the cached one that is nearest to it: the
field of the request that has changed, and both texts from there on.
"""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from inference_svc.chat.conversation import Conversation, Role
from inference_svc.chat.templates import ChatTemplates, RenderedPrompt
from inference_svc.engine.events import Divergence, DivergenceText
from svc_kit.errors import DomainError
from svc_kit.off_loop import off_loop

_SHOWN_TOKENS: Final = 16
_SHOWN_CHARACTERS: Final = 120
_CUT_CHARACTER: Final = "\ufffd"
"""Stands for the first bytes of a character whose others are in the next token."""
_PATH: Final = re.compile(r"(messages|tools)\[(\d+)\](?:\.(\w+)(?:\[\d+\])?)?")
PLACES: Final = (
    *("system", "user", "assistant", "tool", "reasoning_content", "tool_calls", "tools"),
    *("prompt", "unknown"),
)
"""Where prompts differ from what is cached: contents of messages by their roles, parts of messages,
tools, the prompt of Generate."""


class Detokenizing(Protocol):
    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Turn token ids into text. Invalid UTF-8 becomes U+FFFD."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """The text of a prompt that is no conversation."""

    vocabulary: Detokenizing

    async def describe(self, divergence: Divergence, tokens: "array[int]") -> DivergenceText:
        """Describe where a prompt of these `tokens` differs from what is cached."""
        index, num_lost, cached = divergence
        texts = [
            self.vocabulary.detokenize([token for token in each if token >= 0], special=True)
            for each in (cached, tokens[index : index + _SHOWN_TOKENS])
        ]
        is_equal = [one == other for one, other in zip(*texts, strict=False)]
        num_common = [*is_equal, False].index(False)  # of the first tokens
        field = await self._find_field(tokens, index, num_common)
        cached_text, prompt_text = (text[num_common:][:_SHOWN_CHARACTERS] for text in texts)
        return DivergenceText(index, num_lost, field, cached_text, prompt_text)

    def find_place(self, field: str) -> str:
        """The kind of place that a field of `describe` is: one of PLACES."""
        return "prompt"

    async def _find_field(self, tokens: "array[int]", index: int, num_common: int) -> str:
        """The field at a token, or this number of characters behind its begin."""
        return "prompt"


@dataclass(frozen=True, slots=True)
class ConversationText(PromptText):
    """The text of a conversation, which was rendered to `prompt`. `lengths` are the numbers of
    tokens of its texts."""

    templates: ChatTemplates
    conversation: Conversation
    prompt: RenderedPrompt
    lengths: Sequence[int]

    def find_place(self, field: str) -> str:
        """The last word of a field, of the content of a message its role."""
        path = _PATH.fullmatch(field)
        if path is None:
            return "unknown"
        kind, position, part = path.groups()
        if part != "content":
            return part or kind
        roles = {each.position: each.role for each in self.conversation.messages}
        role = roles.get(int(position), "unknown")
        return Role.SYSTEM if role is Role.DEVELOPER else role

    async def _find_field(self, tokens: "array[int]", index: int, num_common: int) -> str:
        offset = await off_loop(len(tokens), lambda each: self._offset(each, index), tokens)
        if offset is None:
            return ""
        try:
            return await self.templates.find_field(
                self.prompt, self.conversation, offset + num_common
            )
        except DomainError:
            return ""

    def _offset(self, tokens: "array[int]", index: int) -> int | None:
        """The character of the prompt with which a token begins; None if the tokens have another
        text, as those of some vocabularies."""
        count, texts = index, tokens
        if any(span.media is not None for span in self.prompt.spans):
            count = sum(token >= 0 for token in tokens[:index])
            texts = array("i", (token for token in tokens if token >= 0))
        begin = len(texts) - sum(self.lengths)  # a BOS token that the template omits is before it
        count, offset, lengths = max(count - begin, 0), 0, iter(self.lengths)
        for span in self.prompt.spans:
            length = next(lengths) if span.media is None else 0
            if count < length:
                text = self.vocabulary.detokenize(texts[begin : begin + count], special=True)
                text = text.rstrip(_CUT_CHARACTER)
                if text.startswith(" ") and not span.text.startswith(" "):
                    text = text[1:]
                return offset + len(text) if span.text.startswith(text) else None
            count, begin, offset = count - length, begin + length, offset + len(span.text)
        return None
