"""The bytes of tokens, and tokens by their bytes, where an engine does not name all of them."""

from collections.abc import Sequence
from typing import Final

from inference_svc.upstream.faults import AnswerInvalid
from inference_svc.upstream.target import UpstreamVocabulary

_MAX_MISSING_BYTES: Final = 64
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


class VocabularyPieces:
    """The pieces of a vocabulary, for `SequenceOutput`."""

    def __init__(self, vocabulary: UpstreamVocabulary) -> None:
        self.size = vocabulary.size
        self._piece = vocabulary.piece
        self._end_tokens = vocabulary.end_tokens

    def piece(self, token: int, *, special: bool) -> bytes:
        return self._piece(token, special)

    def is_eog(self, token: int) -> bool:
        return token in self._end_tokens


class PieceIndex:
    """Finds the tokens that llama-server does not name: those of an unfinished character."""

    def __init__(self, vocabulary: UpstreamVocabulary) -> None:
        """Reads all pieces of the vocabulary, so create it on a thread."""
        self._vocabulary = vocabulary
        self._tokens: dict[bytes, int] = {}
        for token in range(vocabulary.size):
            if piece := vocabulary.piece(token):
                self._tokens.setdefault(piece, token)
        self._longest = max(map(len, self._tokens), default=0)

    def with_missing(
        self, tokens: Sequence[int], content: bytes, num_written: int | None = None
    ) -> Sequence[int]:
        """Return the tokens, which end a text, with those before them that the text has too.

        `num_written` is how many the engine wrote, if it tells. Where several tokens could have
        written the same bytes, the longest are chosen. Bytes that are not UTF-8 are U+FFFD in the
        text, so their tokens cannot be found, and are left out. Raises `AnswerInvalid` if no tokens
        could have written the text.
        """
        size = self._vocabulary.size
        if not all(0 <= each < size for each in tokens):
            return tokens  # refused with a better reason
        known = b"".join(map(self._vocabulary.piece, tokens))
        if content == known or not known or not content.endswith(known):
            return tokens
        missing = content.removesuffix(known)
        if num_written == len(tokens) or _REPLACEMENT in missing:
            return tokens
        if len(missing) > _MAX_MISSING_BYTES:
            raise AnswerInvalid(f"it did not send the tokens of {len(missing)} bytes of text")
        found = self._split(missing)
        if found is None:
            raise AnswerInvalid("its text has bytes of tokens that the vocabulary lacks")
        return (*found, *tokens)

    def _split(self, data: bytes) -> list[int] | None:
        """The fewest tokens with these bytes."""
        best: list[list[int] | None] = [[], *(None for _ in data)]
        for end in range(1, len(data) + 1):
            for start in range(max(0, end - self._longest), end):
                before, token = best[start], self._tokens.get(data[start:end])
                if before is None or token is None:
                    continue
                current = best[end]
                if current is None or len(before) + 1 < len(current):
                    best[end] = [*before, token]
        return best[-1]
