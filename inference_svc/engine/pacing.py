"""What a step will take: the warm-up's tables for decoding rows and for the drafts behind them, and
what prompt tokens really took.

Prompt chunks are sized by it and followers wait by it, so it follows the machine: a rate that was
measured once is wrong as soon as something else runs.
"""

from collections.abc import Mapping

from inference_svc.engine.row_times import RowTimes
from inference_svc.engine.token_batch import NativeLimits

_NEWEST_SHARE = 0.25
# Steps with fewer prompt tokens say more about the rest of the step.
_TELLING_TOKENS = 16


class StepCost:
    """Seconds of a step by decoding rows and prompt tokens; 0 where nothing is known yet.
    `token_times` are seconds by the tokens of a row alone."""

    def __init__(
        self,
        step_times: Mapping[int, float],
        limits: NativeLimits,
        token_times: Mapping[int, float] | None = None,
    ) -> None:
        self._rows = RowTimes(step_times, limits.slots)
        self._tokens = RowTimes(token_times or {}, limits.output_rows)
        # One-token rows of many slots are the dearest way to compute as many prompt tokens.
        self._token_s = self._rows[limits.slots] / limits.slots

    def observe_texts(self, *, rows: int, drafted: int, seconds: float) -> bool:
        """Learn from a step without prompts, with `drafted` tokens behind the one of each row; tell
        whether it was faster than believed."""
        is_faster = self._rows.observe(rows, seconds)
        if drafted:
            is_faster |= self._tokens.observe(rows * (1 + drafted), seconds)
        return is_faster

    def observe_prompts(self, *, num_decoding: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step with prompts."""
        if prompt_tokens < _TELLING_TOKENS or seconds <= 0:
            return
        token_s = max(seconds - self._rows[num_decoding], 0.0) / prompt_tokens
        known = self._token_s or token_s
        self._token_s = known + _NEWEST_SHARE * (token_s - known)

    def prefill_s(self, tokens: int) -> float:
        """Seconds to compute so many prompt tokens."""
        return tokens * self._token_s

    def prompt_tokens_within(self, seconds: float, *, num_decoding: int) -> int | None:
        """The prompt tokens that fit into a step of `seconds` beside decoding rows; None where
        that is not known."""
        if not self._token_s:
            return None
        return max(int((seconds - self._rows[num_decoding]) / self._token_s), 0)

    def slowdown(self, rows: int, tokens: int) -> float:
        """How many times as long a step of decoding rows takes with `tokens` in each of them; 1
        where that was not measured."""
        single = self._rows[rows]
        if not single or not self._tokens:
            return 1.0
        return max(self._tokens[rows * tokens] / single, 1.0)
