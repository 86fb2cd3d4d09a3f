"""How long calls of an engine take, as a line: for the simulation, and for slowed-down engines."""

from typing import NamedTuple


class StepTimes(NamedTuple):
    """Seconds of a call, of each decoding row, and of each token of a prompt."""

    call_s: float
    row_s: float = 0.0
    token_s: float = 0.0

    def decode_s(self, rows: int) -> float:
        """The call of the decoding rows of a step; 0 without any."""
        return self.call_s + self.row_s * rows if rows else 0.0

    def prefill_s(self, tokens: int) -> float:
        """The call of the prompts of a step; 0 without any."""
        return self.call_s + self.token_s * tokens if tokens else 0.0
