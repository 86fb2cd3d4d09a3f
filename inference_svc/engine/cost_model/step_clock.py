"""Measured times of decode calls: histograms, and how long the encoder may compute after a step.

The histograms are kept in the engine because the frontend does not see all steps.
"""

from bisect import bisect_left

from inference_svc.engine.cost_model.step_time import StepTimeModel
from inference_svc.engine.events import StepHistogram
from inference_svc.engine.sequence import Plan

BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
)
"""Upper bounds of the buckets in seconds; the last bucket is unbounded."""


class StepTimes:
    """Histograms of step time since the engine started."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, bool], list[int]] = {}
        self._sums: dict[tuple[int, bool], float] = {}

    def observe(self, *, rows: int, has_prompt: bool, seconds: float) -> None:
        """Count a step in the histogram of its power of two of rows."""
        kind = 1 << (rows - 1).bit_length(), has_prompt
        counts = self._counts.setdefault(kind, [0] * (len(BOUNDS_S) + 1))
        counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sums[kind] = self._sums.get(kind, 0.0) + seconds

    def histograms(self) -> tuple[StepHistogram, ...]:
        """All non-empty histograms, ordered by rows."""
        return tuple(
            StepHistogram(*kind, tuple(counts), self._sums[kind])
            for kind, counts in sorted(self._counts.items())
        )


_PAUSE_RATIO = 0.35
"""The encoder's time after a step, relative to that of the streams' decode call. What this took
longer than usual, and calls of vectors in the step, are subtracted."""
_MIN_PAUSE_RATIO = 0.1
"""Its minimum, relative to the time of the step."""


class StepClock:
    """Adds up the decode calls of each step, and counts them in `step_times`."""

    def __init__(self, step_time: StepTimeModel) -> None:
        self.step_times = StepTimes()
        self._step_time = step_time
        self._step_s = self._encoder_s = 0.0  # time of this step, and what the encoder gets of it

    @property
    def encoder_pause_s(self) -> float:
        """How long to leave the cores to an encoder after this step, if it was stopped."""
        return max(self._encoder_s, _MIN_PAUSE_RATIO * self._step_s)

    def begin_step(self) -> None:
        """Begin a step without any decode call."""
        self._step_s = self._encoder_s = 0.0

    def observe(self, plan: Plan, seconds: float) -> None:
        """Add a decode call."""
        has_prompt = plan.prompt_tokens > 0
        self.step_times.observe(rows=len(plan.rows), has_prompt=has_prompt, seconds=seconds)
        self._step_s += seconds
        if plan.has_vectors:
            self._encoder_s -= seconds
        elif plan.num_decoding:
            self._encoder_s += (1 + _PAUSE_RATIO) * self._usual_s(plan, seconds) - seconds

    def _usual_s(self, plan: Plan, seconds: float) -> float:
        """The seconds of a decode call, at most what one of single tokens takes usually."""
        usual_s = self._step_time.decode_s(plan.num_decoding)
        has_single_tokens = not plan.prompt_tokens and not plan.rows[0].drafted
        return min(seconds, usual_s) if has_single_tokens and usual_s else seconds
