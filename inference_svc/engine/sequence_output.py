"""From output tokens to the text of a sequence, its stop conditions and its end.

The engine and the upstream engines share it: it needs the pieces of the vocabulary, no sampler and
no guide.
"""

from typing import NamedTuple, Protocol

from inference_svc.engine.events import Finished, FinishReason, Timings
from inference_svc.engine.reasoning_tracker import ReasoningTracker
from inference_svc.engine.request import SequenceRequest


class TokenPieces(Protocol):
    """The bytes of tokens, and which of them end a generation."""

    def piece(self, token: int, *, special: bool) -> bytes:
        """The bytes of a token; those of control tokens are empty unless `special`."""

    def is_eog(self, token: int) -> bool:
        """Whether a token ends a generation."""


class AddedToken(NamedTuple):
    """The text that a token releases, the bytes that it adds, and whether the sequence ends."""

    text: str
    piece: bytes
    is_end: bool


class SequenceOutput:
    """The output of one sequence."""

    def __init__(self, request: SequenceRequest) -> None:
        self.reasoning = ReasoningTracker(request.reasoning)
        self._request = request
        self._detokenizer = request.new_detokenizer()
        self._stop_token: int | None = None

    def add(self, token: int, pieces: TokenPieces) -> AddedToken:
        """Add an output token. After the one that ends the sequence no other may be added."""
        request = self._request
        ends = token in request.stop_tokens or (not request.ignore_eos and pieces.is_eog(token))
        piece = b""
        if request.special_tokens or not ends:
            special = request.special_tokens or token in request.visible_tokens
            piece = pieces.piece(token, special=special)
        if not ends:
            self.reasoning.add(token, piece)
        text = self._detokenizer.push(piece)
        is_stopped = self._detokenizer.stop is not None
        if ends and not is_stopped:
            self._stop_token = token
        return AddedToken(text, piece, is_stopped or ends)

    def finish(
        self,
        reason: FinishReason,
        num_output: int,
        timings: Timings,
        *,
        num_drafted: int = 0,
        num_accepted: int = 0,
    ) -> tuple[str, Finished]:
        """End the sequence; return the text that was held back, and the event. The reason is STOP
        if that text, or one before, has a stop text."""
        text = self._detokenizer.finish(at_limit=reason is FinishReason.LENGTH)
        stop = self._detokenizer.stop
        finished = Finished(
            self._request.sequence_id,
            reason if stop is None else FinishReason.STOP,
            stop,
            self._stop_token,
            num_output,
            timings,
            num_drafted,
            num_accepted,
            self.reasoning.num_tokens,
        )
        return text, finished
