"""Plans the slots and context of a model from the free memory.

KV streams reserve slots x context up front, so the product must fit before the model is loaded.
"""

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inference_svc.models.metadata import ModelClass, ModelFile
from svc_kit.errors import ModelTooLarge

_MIB = 1 << 20
_RESERVE_SHARE = 0.1  # of the available memory stays free
_LONG_CONTEXT_SHARE = 0.25  # of the KV cache memory may be used for contexts longer than the ladder
_SLOTS = 16
_LONG_CONTEXTS = (32_768, 16_384)
# Tried in this order until one fits.
_LADDER = (
    (_SLOTS, 8192),
    (8, 8192),
    (4, 8192),
    (4, 4096),
    (2, 4096),
    (1, 4096),
    (1, 2048),
    (1, 1024),
    (1, 512),
)
_COMFORTABLE = (4, 4096)  # slots and context for which idle models are evicted
_CELL_BLOCK = 256  # llama.cpp rounds the cache size up to a multiple of this
_COMPUTE_BYTES = 64 * _MIB
_ENCODER_BYTES = 128 * _MIB  # of the process of a projector, without its weights
_COMPUTE_ROWS = 512
_OUTPUT_ROWS = 2 * _SLOTS  # one per slot, and as many for drafts
_ACTIVATIONS_PER_ROW = 24
_FLOAT_BYTES = 4


class Layout(enum.Enum):
    """KV cache layout: cells per slot (STREAMS, fast), shared (UNIFIED), or chosen by memory."""

    AUTO = "auto"
    STREAMS = "streams"
    UNIFIED = "unified"


@dataclass(frozen=True, slots=True)
class RequestedLimits:
    """The limits requested by the operator; None is chosen automatically. Memory is planned from
    `slots`, `context_tokens` and `layout`."""

    slots: int | None = None
    context_tokens: int | None = None
    batch_tokens: int | None = None
    threads: int | None = None
    layout: Layout = Layout.AUTO


@dataclass(frozen=True, slots=True)
class ResolvedLimits:
    """The limits of a load. `context_tokens` is per slot; `reason` is a line for the log. In the
    unified layout all slots share `shared_cells`."""

    slots: int
    context_tokens: int
    kv_bytes: int
    reason: str
    shared_cells: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Memory for a load: `comfortable` serves several users at once; with less than `least` the
    model, or the requested limits, do not fit. `least` is at most `comfortable`."""

    comfortable: int
    least: int


def memory_needs(model: ModelFile, requested: RequestedLimits) -> MemoryNeeds:
    """Return the memory that must be free for a load, including the reserve."""
    kv_bytes = (
        _kv_bytes(model, *_fitted(model, requested, *_COMFORTABLE)),
        _least_kv_bytes(model, requested),
    )
    comfortable, least = (
        math.ceil((_fixed_bytes(model) + size) / (1 - _RESERVE_SHARE)) + 1 for size in kv_bytes
    )
    return MemoryNeeds(comfortable, min(least, comfortable))


def planned_bytes(model: ModelFile, limits: ResolvedLimits) -> int:
    """Return the expected memory of a model with these limits."""
    return _fixed_bytes(model) + limits.kv_bytes


def plan_limits(
    model_files: Sequence[ModelFile],
    memory_available_bytes: int,
    requests: Sequence[RequestedLimits],
) -> list[ResolvedLimits]:
    """Choose slots and context for models that are loaded together, one request per model.

    Raises:
        ModelTooLarge: weights and the minimal (or the requested) context do not fit; the error has
            the name of the largest model.
    """
    fixed = sum(map(_fixed_bytes, model_files))
    spendable = int(memory_available_bytes * (1 - _RESERVE_SHARE)) - fixed
    wishes = [
        max(1, _kv_bytes(model, *next(_steps(model, requested))))
        for model, requested in zip(model_files, requests, strict=True)
    ]
    limits = []
    for model, requested, wish in zip(model_files, requests, wishes, strict=True):
        share = spendable * wish // sum(wishes)
        resolved = _resolve(model, share, requested, memory_available_bytes)
        if resolved is None:
            least = _least_kv_bytes(model, requested)
            largest = max(model_files, key=lambda each: each.size_bytes)
            raise ModelTooLarge(
                model=largest.name,
                needed_bytes=int((fixed + least) / (1 - _RESERVE_SHARE)),
                available_bytes=memory_available_bytes,
            )
        limits.append(resolved)
    return limits


def _fixed_bytes(model: ModelFile) -> int:
    encoder = 0 if model.projector is None else model.projector.size_bytes + _ENCODER_BYTES
    draft = 0 if model.draft is None else _fixed_bytes(model.draft)
    return model.size_bytes + compute_bytes(model) + encoder + draft


def _cell_bytes(model: ModelFile) -> int:
    """KV cache of a token, also in the cache of the draft model."""
    draft = 0 if model.draft is None else model.draft.kv_bytes_per_token
    return model.kv_bytes_per_token + draft


def compute_bytes(model: ModelFile) -> int:
    """Estimate the size of the compute buffers."""
    activations = _COMPUTE_ROWS * _ACTIVATIONS_PER_ROW * model.embedding_size
    logits = 2 * _OUTPUT_ROWS * model.vocabulary_size
    return _COMPUTE_BYTES + (activations + logits) * _FLOAT_BYTES


def _resolve(
    model: ModelFile, share: int, requested: RequestedLimits, available: int
) -> ResolvedLimits | None:
    """Choose streams if requested or if they fit, else unified; None if neither fits."""
    if _allows_streams(model, requested):
        step = _choose(model, share, requested)
        if step is not None:
            return _resolved(model, step, available, requested)
    return _unified(model, share, requested) if _allows_unified(model, requested) else None


def _allows_streams(model: ModelFile, requested: RequestedLimits) -> bool:
    """llama.cpp aborts on T5 with streams: its relative positions have no place for them."""
    return not model.generates or (requested.layout is not Layout.UNIFIED and not model.has_source)


def _allows_unified(model: ModelFile, requested: RequestedLimits) -> bool:
    return model.generates and (requested.layout is not Layout.STREAMS or model.has_source)


def _unified(model: ModelFile, share: int, requested: RequestedLimits) -> ResolvedLimits | None:
    """Choose the longest context that fits, with as many shared cells as fit."""
    per_token = max(_cell_bytes(model), 1)
    for slots, context in _steps(model, requested):
        desired = _whole_blocks(slots * context)
        cells = min(desired, share // per_token // _CELL_BLOCK * _CELL_BLOCK)
        if cells >= context:
            slots = model.max_slots or requested.slots or _SLOTS
            reason = (
                f"unified: {slots} slots share {cells} cells ({_mib(cells * per_token)}), at most "
                f"{context} tokens each; streams would reserve "
                f"{_mib(_kv_bytes(model, slots, context))}. Decoding slows with what all hold "
                f"together, and a sequence may have to wait for cells"
            )
            return ResolvedLimits(slots, context, cells * per_token, reason, cells)
    return None


def _whole_blocks(cells: int) -> int:
    return math.ceil(cells / _CELL_BLOCK) * _CELL_BLOCK


def _least_kv_bytes(model: ModelFile, requested: RequestedLimits) -> int:
    """The minimum size of the KV cache."""
    steps = list(_steps(model, requested))
    if _allows_unified(model, requested):
        return min(_kv_bytes(model, 1, _whole_blocks(context)) for _, context in steps)
    return min(_kv_bytes(model, *step) for step in steps)


def _choose(model: ModelFile, share: int, requested: RequestedLimits) -> tuple[int, int] | None:
    for context in _LONG_CONTEXTS:
        step = _fitted(model, requested, _SLOTS, context)
        if _kv_bytes(model, *step) <= share * _LONG_CONTEXT_SHARE:
            return step
    fitting = (step for step in _steps(model, requested) if _kv_bytes(model, *step) <= share)
    return next(fitting, None)


def _steps(model: ModelFile, requested: RequestedLimits) -> Iterator[tuple[int, int]]:
    for slots, context in _LADDER:
        yield _fitted(model, requested, slots, context)


def _fitted(
    model: ModelFile, requested: RequestedLimits, slots: int, context: int
) -> tuple[int, int]:
    context_tokens = requested.context_tokens or min(context, model.trained_context_tokens)
    return model.max_slots or requested.slots or slots, context_tokens


def _kv_bytes(model: ModelFile, slots: int, context_tokens: int) -> int:
    if model.model_class is ModelClass.ENCODER:
        return 0
    return slots * context_tokens * _cell_bytes(model)


def _resolved(
    model: ModelFile, step: tuple[int, int], available: int, requested: RequestedLimits
) -> ResolvedLimits:
    slots, context = step
    kv_bytes = _kv_bytes(model, slots, context)
    reason = (
        f"streams: {slots} slots x {context} tokens take {_mib(kv_bytes)} of KV cache beside "
        f"{_mib(model.size_bytes)} of weights; {_mib(available)} are available"
    )
    if requested.slots and requested.context_tokens:
        reason += "; both as requested"
    if context > model.trained_context_tokens:
        reason += f"; the model was trained for {model.trained_context_tokens} tokens only"
    return ResolvedLimits(slots, context, kv_bytes, reason)


def _mib(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB"
