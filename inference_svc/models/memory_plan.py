"""Plans slots and context of a model from the memory that is free.

KV streams reserve slots x context up front, so the product must fit before the model is loaded.
"""

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inference_svc.models.metadata import ModelClass, ModelFile
from svc_kit.errors import ModelTooLarge

_MIB = 1 << 20
_RESERVE_SHARE = 0.1  # of what is available stays free
_EASY_SHARE = 0.25  # of what is left may be spent on context nobody asked for
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
_COMFORTABLE = (4, 4096)  # slots and context that idle models go for
_CELL_BLOCK = 256  # llama.cpp rounds a cache up to so many cells
_COMPUTE_BYTES = 64 * _MIB
_COMPUTE_ROWS = 512
_OUTPUT_ROWS = 2 * _SLOTS  # one a slot, and as many of drafts
_ACTIVATIONS_PER_ROW = 24
_FLOAT_BYTES = 4


class Layout(enum.Enum):
    """Whether each slot has its own cells (fast), all share them, or memory decides."""

    AUTO = "auto"
    STREAMS = "streams"
    UNIFIED = "unified"


@dataclass(frozen=True, slots=True)
class RequestedLimits:
    """What the operator asked for. None: choose. Memory is planned with the first two, in the
    `layout`."""

    slots: int | None = None
    context_tokens: int | None = None
    batch_tokens: int | None = None
    threads: int | None = None
    layout: Layout = Layout.AUTO


@dataclass(frozen=True, slots=True)
class ResolvedLimits:
    """What a model gets. `context_tokens` is of one slot; `reason` is a line for the log. All slots
    share `shared_cells` in the unified layout."""

    slots: int
    context_tokens: int
    kv_bytes: int
    reason: str
    shared_cells: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Memory that a load needs: with `comfortable` a few people are served at once, less than
    `least` cannot serve anybody (or not as requested). `least` is at most `comfortable`."""

    comfortable: int
    least: int


def memory_needs(model: ModelFile, requested: RequestedLimits) -> MemoryNeeds:
    """What must be free before a load, the reserve included."""
    kv_bytes = (
        _kv_bytes(model, *_fitted(model, requested, *_COMFORTABLE)),
        _least_kv_bytes(model, requested),
    )
    comfortable, least = (
        math.ceil((_fixed_bytes(model) + size) / (1 - _RESERVE_SHARE)) + 1 for size in kv_bytes
    )
    return MemoryNeeds(comfortable, min(least, comfortable))


def planned_bytes(model: ModelFile, limits: ResolvedLimits) -> int:
    """What the load is expected to take."""
    return _fixed_bytes(model) + limits.kv_bytes


def plan_limits(
    model_files: Sequence[ModelFile],
    memory_available_bytes: int,
    requests: Sequence[RequestedLimits],
) -> list[ResolvedLimits]:
    """Choose slots and context for each model, all loaded together; `requests` are theirs.

    Raises:
        ModelTooLarge: weights and the least (or the requested) context do not fit; the error names
            the largest model and both sums.
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
    return model.size_bytes + compute_bytes(model)


def compute_bytes(model: ModelFile) -> int:
    """Estimate the buffers that computing takes beside weights and KV cache."""
    activations = _COMPUTE_ROWS * _ACTIVATIONS_PER_ROW * model.embedding_size
    logits = 2 * _OUTPUT_ROWS * model.vocabulary_size
    return _COMPUTE_BYTES + (activations + logits) * _FLOAT_BYTES


def _resolve(
    model: ModelFile, share: int, requested: RequestedLimits, available: int
) -> ResolvedLimits | None:
    """Streams where they fit and nothing else is asked for; None where nothing fits."""
    if requested.layout is not Layout.UNIFIED or not model.generates:
        step = _choose(model, share, requested)
        if step is not None:
            return _resolved(model, step, available, requested)
    return _unified(model, share, requested) if _may_share(model, requested) else None


def _may_share(model: ModelFile, requested: RequestedLimits) -> bool:
    return model.generates and requested.layout is not Layout.STREAMS


def _unified(model: ModelFile, share: int, requested: RequestedLimits) -> ResolvedLimits | None:
    """As many cells as fit, for the longest context that they hold."""
    per_token = max(model.kv_bytes_per_token, 1)
    for slots, context in _steps(model, requested):
        wished = _whole_blocks(slots * context)
        cells = min(wished, share // per_token // _CELL_BLOCK * _CELL_BLOCK)
        if cells >= context:
            slots = requested.slots or _SLOTS
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
    if _may_share(model, requested):
        return min(_kv_bytes(model, 1, _whole_blocks(context)) for _, context in steps)
    return min(_kv_bytes(model, *step) for step in steps)


def _choose(model: ModelFile, share: int, requested: RequestedLimits) -> tuple[int, int] | None:
    for context in _LONG_CONTEXTS:
        step = _fitted(model, requested, _SLOTS, context)
        if _kv_bytes(model, *step) <= share * _EASY_SHARE:
            return step
    fitting = (step for step in _steps(model, requested) if _kv_bytes(model, *step) <= share)
    return next(fitting, None)


def _steps(model: ModelFile, requested: RequestedLimits) -> Iterator[tuple[int, int]]:
    for slots, context in _LADDER:
        yield _fitted(model, requested, slots, context)


def _fitted(
    model: ModelFile, requested: RequestedLimits, slots: int, context: int
) -> tuple[int, int]:
    wanted = requested.context_tokens or min(context, model.trained_context_tokens)
    return requested.slots or slots, wanted


def _kv_bytes(model: ModelFile, slots: int, context_tokens: int) -> int:
    if model.model_class is ModelClass.ENCODER:
        return 0
    return slots * context_tokens * model.kv_bytes_per_token


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
