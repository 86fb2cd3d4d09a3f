"""Tests of choosing slots and context from the available memory."""

from dataclasses import replace
from typing import Any

import pytest

from inference_svc.models.memory_plan import (
    Layout,
    RequestedLimits,
    ResolvedLimits,
    compute_bytes,
    memory_needs,
    plan_limits,
    planned_bytes,
)
from inference_svc.models.metadata import ModelClass, ModelFile, describe_model
from inference_svc.models.sources import BUNDLED_PATH
from model_files.ggml_types import KvType
from svc_kit.errors import ModelTooLarge

GIB = 1 << 30
NO_LIMITS = RequestedLimits()


def make_model_file(**changes: Any) -> ModelFile:
    """A 7B model: 4 GiB of weights, 128 KiB of KV cache per token, trained for 128k tokens."""
    model = describe_model(BUNDLED_PATH, "m")
    settings: dict[str, Any] = {
        "size_bytes": 4 * GIB,
        "kv_bytes_per_token": 128 << 10,
        "trained_context_tokens": 131_072,
        "vocabulary_size": 150_000,
        "embedding_size": 4096,
    }
    return replace(model, **(settings | changes))


def plan(available: int, requested: RequestedLimits = NO_LIMITS, **changes: Any) -> tuple[int, int]:
    (limits,) = plan_limits([make_model_file(**changes)], available, [requested])
    return limits.slots, limits.context_tokens


@pytest.mark.parametrize(
    ("available_gib", "slots", "context_tokens"),
    [
        (512, 16, 32_768),
        (150, 16, 16_384),
        (32, 16, 8192),
        (16, 8, 8192),
        (10, 4, 8192),
        (8, 4, 4096),
        (6, 2, 4096),
        (5, 1, 1024),
    ],
)
def test_less_memory_reduces_slots_before_context(
    available_gib: int, slots: int, context_tokens: int
) -> None:
    """A short context refuses requests; few slots only make them wait. Contexts longer than 8192
    are only used with plenty of memory."""
    assert plan(available_gib * GIB) == (slots, context_tokens)


def test_the_trained_context_is_not_exceeded_by_default() -> None:
    """The demo model gets its trained context."""
    (limits,) = plan_limits([describe_model(BUNDLED_PATH, "m")], 8 * GIB, [NO_LIMITS])

    assert (limits.slots, limits.context_tokens) == (16, 2048)
    assert limits.kv_bytes == 16 * 2048 * 3072


def test_a_draft_model_takes_memory_for_its_weights_and_for_each_token() -> None:
    """In both layouts, and in what a load needs at least."""
    draft = make_model_file(name="draft", size_bytes=GIB // 2, kv_bytes_per_token=1 << 15)
    alone = make_model_file(kv_bytes_per_token=1 << 16)
    model = replace(alone, draft=draft)
    for layout in (Layout.STREAMS, Layout.UNIFIED):
        requested = RequestedLimits(2, 1024, layout=layout)
        (limits,) = plan_limits([model], 64 * GIB, [requested])
        (plain,) = plan_limits([alone], 64 * GIB, [requested])

        assert limits.kv_bytes == 2 * 1024 * ((1 << 16) + (1 << 15))
        assert plain.kv_bytes == 2 * 1024 * (1 << 16)
        weights = draft.size_bytes + compute_bytes(draft)
        difference = planned_bytes(model, limits) - planned_bytes(alone, plain)
        assert difference == weights + 2 * 1024 * (1 << 15)
        assert memory_needs(model, requested).least > memory_needs(alone, requested).least + weights


def test_requested_limits_are_used() -> None:
    """One that is unset is chosen."""
    assert plan(16 * GIB, RequestedLimits(slots=2)) == (2, 8192)
    assert plan(16 * GIB, RequestedLimits(context_tokens=1024))[1] == 1024
    assert plan(64 * GIB, RequestedLimits(3, 5000)) == (3, 5000)


@pytest.mark.parametrize("layout", [Layout.STREAMS, Layout.UNIFIED])
def test_a_model_that_computes_one_sequence_at_once_has_one_slot(layout: Layout) -> None:
    """Also if more are requested."""
    requested = RequestedLimits(slots=4, layout=layout)

    assert plan(64 * GIB, requested, architecture="plamo2")[0] == 1


def test_a_requested_context_may_exceed_the_trained_one() -> None:
    """With a warning in the log."""
    (limits,) = plan_limits(
        [make_model_file(trained_context_tokens=512)], 64 * GIB, [RequestedLimits(1, 1024)]
    )

    assert limits.context_tokens == 1024
    assert "trained for 512 tokens only" in limits.reason


def test_a_model_that_does_not_fit_is_refused() -> None:
    """The error has the needed and the available memory."""
    with pytest.raises(ModelTooLarge) as raised:
        plan(4 * GIB)
    assert raised.value.metadata["available_bytes"] == str(4 * GIB)
    assert int(raised.value.metadata["needed_bytes"]) > 4 * GIB

    with pytest.raises(ModelTooLarge):
        plan(16 * GIB, RequestedLimits(slots=64, context_tokens=131_072))


def plan_unified(available: int, requested: RequestedLimits) -> ResolvedLimits:
    (limits,) = plan_limits([make_model_file()], available, [requested])
    assert limits.shared_cells is not None
    assert limits.kv_bytes == limits.shared_cells * (128 << 10)
    return limits


def test_unified_is_chosen_if_streams_do_not_fit() -> None:
    """Streams would need 32 GiB for 16 x 16k tokens; about 10 GiB are available."""
    limits = plan_unified(16 * GIB, RequestedLimits(slots=16, context_tokens=16_384))

    assert (limits.slots, limits.context_tokens) == (16, 16_384)
    assert 16_384 < (limits.shared_cells or 0) < 6 * 16_384
    assert "streams would reserve 32,768 MiB" in limits.reason
    assert planned_bytes(make_model_file(), limits) <= 16 * GIB


def test_requested_streams_are_not_replaced_by_unified() -> None:
    """The load is refused instead."""
    with pytest.raises(ModelTooLarge):
        plan(16 * GIB, RequestedLimits(16, 16_384, layout=Layout.STREAMS))


def test_unified_may_be_requested() -> None:
    """Even if streams fit; it uses at most as many cells as they would."""
    limits = plan_unified(512 * GIB, RequestedLimits(4, 1000, layout=Layout.UNIFIED))

    assert limits.shared_cells == 4096


def test_the_minimum_is_one_full_context() -> None:
    """A sequence must be able to use the whole context."""
    requested = RequestedLimits(16, 16_384)
    least = memory_needs(make_model_file(), requested).least

    assert plan_unified(least, requested).shared_cells == 16_384
    with pytest.raises(ModelTooLarge):
        plan(least - GIB // 2, requested)


def test_models_planned_together_share_the_memory() -> None:
    """Their sum fits."""
    models = [make_model_file(name="a"), make_model_file(name="b", kv_bytes_per_token=32 << 10)]

    limits = plan_limits(models, 18 * GIB, [NO_LIMITS] * len(models))

    used = sum(m.size_bytes + compute_bytes(m) for m in models) + sum(x.kv_bytes for x in limits)
    assert used <= 18 * GIB
    assert [(each.slots, each.context_tokens) for each in limits] == [(4, 8192), (4, 8192)]


def test_an_encoder_has_no_kv_cache() -> None:
    """Its size is 0."""
    (limits,) = plan_limits([make_model_file(model_class=ModelClass.ENCODER)], 8 * GIB, [NO_LIMITS])

    assert limits.kv_bytes == 0


def test_the_reason_has_the_sizes() -> None:
    (limits,) = plan_limits([make_model_file()], 32 * GIB, [NO_LIMITS])

    assert limits.reason == (
        "streams: 16 slots x 8192 tokens take 16,384 MiB of KV cache beside 4,096 MiB of weights; "
        "32,768 MiB are available"
    )


def test_memory_needs_are_sufficient() -> None:
    """`least` for one sequence, `comfortable` for several."""
    model = make_model_file()
    needs = memory_needs(model, NO_LIMITS)
    least, comfortable = (
        plan_limits([model], bytes_free, [NO_LIMITS])[0]
        for bytes_free in (needs.least, needs.comfortable)
    )
    with pytest.raises(ModelTooLarge):
        plan_limits([model], needs.least - 2, [NO_LIMITS])

    assert (least.slots, least.context_tokens) == (1, 512)
    assert (comfortable.slots, comfortable.context_tokens) == (4, 4096)
    assert planned_bytes(model, comfortable) <= needs.comfortable


def test_a_quantized_kv_cache_is_smaller() -> None:
    """8.5 bits per value instead of 16."""
    model = make_model_file().with_kv_types(KvType.Q8_0, KvType.Q8_0)

    assert model.kv_bytes_per_token == (128 << 10) * 8.5 / 16
