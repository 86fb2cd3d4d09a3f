"""What an upstream engine honours of a request, found by probing.

A local engine honours everything, and has no `Features`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import LLAMA_CPP_ORDER, Sampling, Stage
from inference_svc.engine_client.continuation import may_continue
from inference_svc.engine_client.form_schema import unenforced_part
from inference_svc.output_format import OutputFormatKind
from svc_kit.errors import FeatureUnsupported

NEUTRAL: Final[Mapping[str, Any]] = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "min_keep": 0,
    "penalty_last_n": -1,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "dry": None,
    "mirostat": None,
    "adaptive": None,
    "logit_bias": (),
    "allowed_token_ids": (),
    "stages": LLAMA_CPP_ORDER,
}
"""The values of the fields of `Sampling`, but for the temperature, that change nothing."""
NEUTRAL_SAMPLING: Final = Sampling(temperature=1.0, **NEUTRAL)
_OF_STAGE: Final[Mapping[Stage, tuple[str, ...]]] = {
    Stage.PENALTIES: ("repetition_penalty", "frequency_penalty", "presence_penalty"),
    Stage.DRY: ("dry",),
    Stage.TOP_N_SIGMA: ("top_n_sigma",),
    Stage.TOP_K: ("top_k",),
    Stage.TYPICAL_P: ("typical_p",),
    Stage.TOP_P: ("top_p",),
    Stage.MIN_P: ("min_p",),
    Stage.XTC: ("xtc_probability", "xtc_threshold"),
}
_DEFAULT_WINDOW: Final = Sampling().penalty_last_n
PUBLIC_NAMES: Final[Mapping[str, str]] = {
    "stages": "samplers",
    "dry": "dry.multiplier",
    "mirostat": "mirostat.version",
    "adaptive": "adaptive.target",
}
"""Names of fields of `Sampling` in the API, where they differ."""


def effective_fields(sampling: Sampling) -> dict[str, Any]:
    """All fields of `sampling` by name, with the values that they have in effect: neutral ones
    where another field turns them off. With the temperature 0 (greedy) no filter has an effect.

    `stages` is `LLAMA_CPP_ORDER` if those that act are in this order.
    """
    values = {each.name: getattr(sampling, each.name) for each in fields(sampling)}
    off = [stage for stage in _OF_STAGE if not sampling.is_active(stage)]
    off += [stage for stage in _OF_STAGE if stage not in sampling.stages]
    if Stage.PENALTIES in off:
        values["penalty_last_n"] = NEUTRAL["penalty_last_n"]
    if Stage.TEMPERATURE not in sampling.stages:
        values |= {"temperature": 1.0, "dynatemp_range": 0.0}
    if not values["dynatemp_range"]:
        values["dynatemp_exponent"] = NEUTRAL["dynatemp_exponent"]
        if values["temperature"] <= 0:
            values["temperature"] = 0.0
            off += [stage for stage in _OF_STAGE if stage not in (Stage.PENALTIES, Stage.DRY)]
    for stage in off:
        values |= {name: NEUTRAL[name] for name in _OF_STAGE[stage]}
    if values["min_keep"] <= 1:
        values["min_keep"] = NEUTRAL["min_keep"]
    if sampling.stages == tuple(each for each in LLAMA_CPP_ORDER if each in sampling.stages):
        values["stages"] = LLAMA_CPP_ORDER
    return values


@dataclass(frozen=True, slots=True)
class Features:
    """What an engine honours.

    `engine` names it with its version, for errors. `sampling` are the names of fields of `Sampling`
    that act; the others must have their `NEUTRAL` values, except that filters are applied in the
    engine's own order where "stages" is missing, and that penalties look at all tokens where
    "penalty_last_n" is missing, which a request may leave at its default (64) or set to -1.

    `constraints` are the kinds that it takes in its own form, JSON Schemas only with the keywords
    that `form_schema` allows. With `takes_grammars` it takes
    the compiled grammars (llguidance), and everything that the service enforces works;
    `grammar_flag` is what to start it with if it could, and `brackets_are_control` is whether its
    grammars take each added token of the form <...> for a control token, as llguidance does with
    tokenizers of Hugging Face. `max_logprobs` is None without log
    probabilities. `vector_size` is the length of its embeddings, None if it has none; one that
    embeds `generates` or not. With `mixes_adapters` a request may have several, and scales other
    than 1. With `separates_projects` it reuses a prefix only for requests with the same salt.
    """

    engine: str
    sampling: frozenset[str]
    constraints: frozenset[OutputFormatKind] = frozenset()
    takes_grammars: bool = False
    grammar_flag: str = ""
    brackets_are_control: bool = False
    max_logprobs: int | None = None
    min_tokens: bool = False
    ignore_eos: bool = False
    generates: bool = True
    vector_size: int | None = None
    mixes_adapters: bool = False
    separates_projects: bool = False

    def check(self, request: SequenceRequest) -> None:
        """Raise `FeatureUnsupported`, naming the field and the engine, for what it would ignore.

        Drafts, priorities, caching (`reuse`, `keep`, `keep_for`) are hints, which it may ignore.
        """
        for feature in self._missing(request):
            raise FeatureUnsupported(feature=f"{feature} with the engine {self.engine}")

    def takes(self, constraint: Constraint) -> bool:
        """Whether a constraint can be enforced."""
        return not self._lacks(constraint)

    def continues(self, constraint: Constraint) -> bool:
        """Whether an output within a constraint may go on after it has begun: its rest is then sent
        as a grammar in GBNF."""
        form = constraint.form
        return form is not None and self.takes_gbnf and may_continue(form)

    @property
    def takes_gbnf(self) -> bool:
        return OutputFormatKind.GBNF in self.constraints

    def _lacks(self, constraint: Constraint) -> str:
        """What of a constraint would not be enforced; empty if all is."""
        form = constraint.form
        if self.takes_grammars:
            return ""
        if form is None or form.kind not in self.constraints:
            return f"'{constraint.field}'"
        if form.kind is OutputFormatKind.JSON_SCHEMA and (part := unenforced_part(form.text)):
            return f"{part} in '{constraint.field}'"
        return ""

    def missing_sampling(self, sampling: Sampling) -> list[str]:
        """The fields of `sampling` that it would ignore, by their names in the API."""
        values = effective_fields(sampling)
        if values["penalty_last_n"] == _DEFAULT_WINDOW:
            values["penalty_last_n"] = NEUTRAL["penalty_last_n"]
        return [
            PUBLIC_NAMES.get(name, name)
            for name, neutral in NEUTRAL.items()
            if name not in self.sampling and values[name] != neutral
        ]

    def _missing(self, request: SequenceRequest) -> Iterator[str]:
        yield from (f"'{name}'" for name in self.missing_sampling(request.sampling))
        constraint = request.constraint
        if constraint is not None and (lacking := self._lacks(constraint)):
            hint = f" (start it with {self.grammar_flag})" if self.grammar_flag else ""
            yield f"{lacking}{hint}"
        if constraint is not None and request.resumed and not self.continues(constraint):
            yield f"'resume' with '{constraint.field}'"
        has_budget = request.reasoning is not None and request.reasoning.budget is not None
        if constraint is not None and has_budget:
            yield f"a limit of the reasoning with '{constraint.field}'"
        if request.top_logprobs is not None:
            if self.max_logprobs is None:
                yield "'logprobs'"
            elif request.top_logprobs > self.max_logprobs:
                yield f"'logprobs' above {self.max_logprobs}"
        refused = {
            "'prompt_logprobs'": request.prompt_logprobs is not None,
            "'min_tokens'": request.min_tokens > 0 and not self.min_tokens,
            "'ignore_eos'": request.ignore_eos and not self.ignore_eos,
            "'deterministic'": request.deterministic,
            "'snapshot_id'": bool(request.snapshot_id),
            "several 'adapters'": len(request.adapters) > 1 and not self.mixes_adapters,
            "a 'scale' of 'adapters' other than 1": any(
                each.scale != 1 and not self.mixes_adapters for each in request.adapters
            ),
            "pictures and sounds": bool(request.media),
            "an encoder": bool(request.source),
        }
        yield from (name for name, is_wanted in refused.items() if is_wanted)
