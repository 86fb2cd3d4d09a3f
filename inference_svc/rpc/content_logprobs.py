"""Log probabilities of the tokens that a caller of `Chat` sees: those of the content.

Tokens of reasoning, tool calls, markers and hidden control tokens have none. A token of which a
part is content has that part as its text, so that the texts of the tokens joined are the content.
"""

import codecs
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from inference_svc.chat.parsers.output import Range
from inference_svc.engine.events import ChosenLogprob


class _Token(NamedTuple):
    text: bytes
    characters: Sequence[int]
    """The number of the character to which each byte belongs."""
    logprob: ChosenLogprob | None


class ContentLogprobs:
    """The tokens of one turn of which it is not decided yet whether they are content."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_characters = 0
        self._tokens: deque[_Token] = deque()
        self._ranges: deque[Range] = deque()

    def add(self, text: bytes, logprob: ChosenLogprob | None) -> None:
        """Add a token; a resumed one has no log probability."""
        if text:
            self._tokens.append(_Token(text, self._characters(text), logprob))

    def pop(self, ranges: Iterable[Range], num_decided: int | None) -> Iterator[ChosenLogprob]:
        """Yield the tokens of the content that are decided: those before this character. `ranges`
        are those of new content. None: all are decided."""
        if not self._tokens:
            return
        self._ranges += ranges
        while self._tokens and (
            num_decided is None or self._tokens[0].characters[-1] < num_decided
        ):
            token = self._tokens.popleft()
            text = self._visible(token)
            if text and token.logprob is not None:
                chosen = token.logprob.chosen._replace(piece=text)
                yield token.logprob._replace(chosen=chosen)

    def _characters(self, text: bytes) -> Sequence[int]:
        begin = self._num_characters
        if text.isascii() and not self._decoder.getstate()[0]:
            self._num_characters += len(text)
            return range(begin, self._num_characters)
        characters = []
        for byte in text:
            self._num_characters += len(self._decoder.decode(bytes((byte,))))
            is_inside = bool(self._decoder.getstate()[0])
            characters.append(self._num_characters - (not is_inside))
        return characters

    def _visible(self, token: _Token) -> bytes:
        """The bytes of a token that are content."""
        visible = bytearray()
        for byte, character in zip(token.text, token.characters, strict=True):
            while self._ranges and self._ranges[0][1] <= character:
                self._ranges.popleft()
            if self._ranges and self._ranges[0][0] <= character:
                visible.append(byte)
        return bytes(visible)
