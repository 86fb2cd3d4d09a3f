"""Describes the sequence of a saved state: its tokens, and the data to rebuild its samplers."""

import json
from dataclasses import asdict

from inference_svc.engine.kv_cache.prefix_cache import PrefixCache
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine.saved_state import Origin
from inference_svc.engine.sequence import Sequence
from svc_kit.errors import InvalidField, SnapshotNotFound

_OF_RELEASE_0_1 = {
    *("adaptive", "allowed_token_ids", "dry", "dynatemp_exponent", "dynatemp_range"),
    *("frequency_penalty", "logit_bias", "min_keep", "min_p", "mirostat", "penalty_last_n"),
    *("presence_penalty", "repetition_penalty", "stages", "temperature", "top_k", "top_n_sigma"),
    *("top_p", "typical_p", "xtc_probability", "xtc_threshold"),
}
"""Parameters that all recipes have. Later ones are left out while they have their default, so that
states which were saved before are still found."""
_DEFAULT = Sampling()


def prefix_origin(sequence: Sequence) -> Origin:
    request = sequence.request
    return Origin(
        request_id=request.request_id,
        choice=request.choice,
        project=request.project,
        tokens=sequence.tokens[:],
        num_prompt=len(request.prompt),
        recipe=recipe_of(request),
        hidden=sequence.sampler.hidden if sequence.sampler is not None else (),
        adapters=request.adapters,
    )


def recipe_of(request: SequenceRequest) -> str:
    """Return everything besides tokens and logits that determines the samples, as JSON."""
    values = asdict(request.sampling).items()
    sampling = {k: v for k, v in values if k in _OF_RELEASE_0_1 or v != getattr(_DEFAULT, k)}
    sampling["stages"] = [stage.value for stage in request.sampling.stages]
    constraint = request.constraint
    recipe = {
        "seed": request.seed,
        "choice": request.choice,
        "sampling": sampling,
        "min_tokens": request.min_tokens,
        "stop_tokens": sorted(request.stop_tokens),
        "ignore_eos": request.ignore_eos,
        "grammar": constraint.grammar if constraint is not None else None,
    }
    return json.dumps(recipe, sort_keys=True)


def restored_sampler_state(sequence: Sequence, prefix_cache: PrefixCache) -> tuple[float, ...]:
    """Return the sampler state of the snapshot from which a sequence resumes.

    Raises `SnapshotNotFound` if its owner has not restored it, and `InvalidField` if it belongs to
    another generation.
    """
    request = sequence.request
    entry = prefix_cache.find_snapshot(request.snapshot_id)
    if entry is None or entry.origin is None or entry.key != request.cache_key:
        raise SnapshotNotFound(snapshot=request.snapshot_id)
    if entry.origin.tokens != sequence.tokens or entry.origin.recipe != recipe_of(request):
        problem = "it was saved from another generation, or at another token"
        raise InvalidField(field="resume.snapshot_id", problem=problem)
    return entry.origin.hidden
