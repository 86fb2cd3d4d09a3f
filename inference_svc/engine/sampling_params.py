"""Sampling parameters of a sequence, validated; names, ranges and defaults are those of llama.cpp's
`common_params_sampling`.
"""

import enum
from dataclasses import dataclass

from inference_svc.validation import check_count, check_range, check_tokens
from svc_kit.errors import InvalidField


class Stage(enum.Enum):
    """One filter of the chain."""

    PENALTIES = "penalties"
    DRY = "dry"
    TOP_N_SIGMA = "top_n_sigma"
    TOP_K = "top_k"
    TYPICAL_P = "typical_p"
    TOP_P = "top_p"
    MIN_P = "min_p"
    XTC = "xtc"
    TEMPERATURE = "temperature"
    INFILL = "infill"


LLAMA_CPP_ORDER = tuple(stage for stage in Stage if stage is not Stage.INFILL)
_XTC_OFF = 0.5  # above it XTC has no effect: at most one token can be more probable


@dataclass(frozen=True, slots=True)
class Dry:
    """DRY: an exponential penalty on continuing a repetition."""

    multiplier: float = 0.0
    base: float = 1.75
    allowed_length: int = 2
    penalty_last_n: int = -1
    sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")


@dataclass(frozen=True, slots=True)
class Mirostat:
    """Mirostat 1 or 2: it replaces every filter except the temperature."""

    version: int
    tau: float = 5.0
    eta: float = 0.1


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Adaptive-p: it replaces the final draw."""

    target: float
    decay: float = 0.9


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling settings of one sequence."""

    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    min_keep: int = 0
    penalty_last_n: int = 64
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry: Dry | None = None
    mirostat: Mirostat | None = None
    adaptive: Adaptive | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    stages: tuple[Stage, ...] = LLAMA_CPP_ORDER

    @property
    def has_penalties(self) -> bool:
        """Whether tokens seen before change the logits."""
        return self.penalty_last_n != 0 and (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )

    @property
    def has_dry(self) -> bool:
        """Whether repetitions seen before change the logits."""
        return self.dry is not None and self.dry.multiplier > 0

    def is_active(self, stage: Stage) -> bool:
        """Whether a filter, where it is applied, may change anything."""
        changes = {
            Stage.PENALTIES: self.has_penalties,
            Stage.DRY: self.has_dry,
            Stage.TOP_N_SIGMA: self.top_n_sigma > 0,
            Stage.TOP_K: self.top_k > 0,
            Stage.TYPICAL_P: self.typical_p < 1,
            Stage.TOP_P: self.top_p < 1,
            Stage.MIN_P: self.min_p > 0,
            Stage.XTC: self.xtc_probability > 0 and self.xtc_threshold <= _XTC_OFF,
            Stage.TEMPERATURE: self.temperature != 1 or self.dynatemp_range > 0,
            Stage.INFILL: True,
        }
        return changes[stage]

    @property
    def has_hidden_state(self) -> bool:
        """Whether the next draw depends on earlier probabilities. The output tokens alone cannot
        restore such a state."""
        return self.mirostat is not None or self.adaptive is not None

    def validate(self, *, vocabulary_size: int, context_tokens: int) -> None:
        """Check what depends on the model, and on other parameters; the proto has all other limits.

        Raises `OutOfRange`, `TooLong`, `InvalidField` or `TokenOutOfVocabulary`, naming the field.
        """
        check_range("min_keep", self.min_keep, 0, vocabulary_size)
        check_range("penalty_last_n", self.penalty_last_n, -1, context_tokens)
        if self.dry is not None:
            check_range("dry.allowed_length", self.dry.allowed_length, 0, context_tokens)
            check_range("dry.penalty_last_n", self.dry.penalty_last_n, -1, context_tokens)
            if any(not text or "\0" in text for text in self.dry.sequence_breakers):
                problem = "is empty or contains a NUL character"
                raise InvalidField(field="dry.sequence_breakers", problem=problem)
        if len(set(self.stages)) != len(self.stages):
            raise InvalidField(field="samplers", problem="a sampler is named twice")
        if self.mirostat is not None and self.adaptive is not None:
            raise InvalidField(field="adaptive.target", problem="cannot be combined with mirostat")
        check_tokens("logit_bias", [token for token, _ in self.logit_bias], vocabulary_size)
        check_count("allowed_token_ids", self.allowed_token_ids, vocabulary_size)
        check_tokens("allowed_token_ids", self.allowed_token_ids, vocabulary_size)
