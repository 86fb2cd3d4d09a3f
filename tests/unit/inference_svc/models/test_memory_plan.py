"""How slots and context are chosen."""

import dataclasses
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
NOTHING = RequestedLimits()


def make_model_file(**changes: Any) -> ModelFile:
    """A 7 B-shaped model: 4 GiB of weights, 128 KiB of cache a token, trained for 128 k."""
    model = describe_model(BUNDLED_PATH, "m")
    settings: dict[str, Any] = {
        "size_bytes": 4 * GIB,
        "kv_bytes_per_token": 128 << 10,
        "trained_context_tokens": 131_072,
        "vocabulary_size": 150_000,
        "embedding_size": 4096,
    }
    return dataclasses.replace(model, **(settings | changes))


def planned(
    available: int, requested: RequestedLimits = NOTHING, **changes: Any
) -> tuple[int, int]:
    (limits,) = plan_limits([make_model_file(**changes)], available, [requested])
    return limits.slots, limits.context_tokens


def test_much_memory_gives_long_contexts_to_many_slots() -> None:
    """The long contexts are taken where they are cheap."""
    assert planned(512 * GIB) == (16, 32_768)
    assert planned(150 * GIB) == (16, 16_384)


def test_less_memory_costs_slots_before_context() -> None:
    """A short context refuses requests; few slots only make them wait."""
    assert planned(32 * GIB) == (16, 8192)
    assert planned(16 * GIB) == (8, 8192)
    assert planned(10 * GIB) == (4, 8192)
    assert planned(8 * GIB) == (4, 4096)
    assert planned(6 * GIB) == (2, 4096)
    assert planned(5 * GIB) == (1, 1024)


def test_the_trained_context_is_never_exceeded_unasked() -> None:
    """The demo model gets what it was trained for."""
    (limits,) = plan_limits([describe_model(BUNDLED_PATH, "m")], 8 * GIB, [NOTHING])

    assert (limits.slots, limits.context_tokens) == (16, 2048)
    assert limits.kv_bytes == 16 * 2048 * 3072


def test_what_was_asked_for_is_given() -> None:
    """Either limit, or both, can be fixed; the other follows."""
    assert planned(16 * GIB, RequestedLimits(slots=2)) == (2, 8192)
    assert planned(16 * GIB, RequestedLimits(context_tokens=1024))[1] == 1024
    assert planned(64 * GIB, RequestedLimits(3, 5000)) == (3, 5000)


def test_a_context_beyond_the_trained_one_is_given_with_a_warning() -> None:
    """Some models stretch; the log says that it was asked for."""
    (limits,) = plan_limits(
        [make_model_file(trained_context_tokens=512)], 64 * GIB, [RequestedLimits(1, 1024)]
    )

    assert limits.context_tokens == 1024
    assert "trained for 512 tokens only" in limits.reason


def test_what_cannot_fit_is_refused_with_both_sums() -> None:
    """Before anything is loaded, the operator reads what it would take."""
    with pytest.raises(ModelTooLarge) as raised:
        planned(4 * GIB)
    assert raised.value.metadata["available_bytes"] == str(4 * GIB)
    assert int(raised.value.metadata["needed_bytes"]) > 4 * GIB

    with pytest.raises(ModelTooLarge):
        planned(16 * GIB, RequestedLimits(slots=64, context_tokens=131_072))


def unified(available: int, requested: RequestedLimits) -> ResolvedLimits:
    """What a model gets that shares its cells."""
    (limits,) = plan_limits([make_model_file()], available, [requested])
    assert limits.shared_cells is not None
    assert limits.kv_bytes == limits.shared_cells * (128 << 10)
    return limits


def test_what_streams_cannot_reserve_is_shared() -> None:
    """Sixteen conversations of 16 k need 32 GiB of streams; there are some 10 GiB for all."""
    limits = unified(16 * GIB, RequestedLimits(slots=16, context_tokens=16_384))

    assert (limits.slots, limits.context_tokens) == (16, 16_384)
    assert 16_384 < (limits.shared_cells or 0) < 6 * 16_384
    assert "streams would reserve 32,768 MiB" in limits.reason
    assert planned_bytes(make_model_file(), limits) <= 16 * GIB


def test_streams_that_are_asked_for_are_not_replaced() -> None:
    """The operator would rather hear of it."""
    with pytest.raises(ModelTooLarge):
        planned(16 * GIB, RequestedLimits(16, 16_384, layout=Layout.STREAMS))


def test_sharing_may_be_asked_for() -> None:
    """Also where streams would fit; it takes no more than they would."""
    limits = unified(512 * GIB, RequestedLimits(4, 1000, layout=Layout.UNIFIED))

    assert limits.shared_cells == 4096


def test_one_whole_context_is_the_least() -> None:
    """A sequence that could never be as long as promised is no use."""
    requested = RequestedLimits(16, 16_384)
    least = memory_needs(make_model_file(), requested).least

    assert unified(least, requested).shared_cells == 16_384
    with pytest.raises(ModelTooLarge):
        planned(least - GIB // 2, requested)


def test_several_models_share_the_memory() -> None:
    """What all of them take together fits."""
    models = [make_model_file(name="a"), make_model_file(name="b", kv_bytes_per_token=32 << 10)]

    limits = plan_limits(models, 18 * GIB, [NOTHING] * len(models))

    taken = sum(m.size_bytes + compute_bytes(m) for m in models) + sum(x.kv_bytes for x in limits)
    assert taken <= 18 * GIB
    assert [(each.slots, each.context_tokens) for each in limits] == [(4, 8192), (4, 8192)]


def test_an_encoder_needs_no_cache() -> None:
    """Embedding a text leaves nothing behind."""
    (limits,) = plan_limits([make_model_file(model_class=ModelClass.ENCODER)], 8 * GIB, [NOTHING])

    assert limits.kv_bytes == 0


def test_the_reason_has_the_figures() -> None:
    """The start-up log shows the sum."""
    (limits,) = plan_limits([make_model_file()], 32 * GIB, [NOTHING])

    assert limits.reason == (
        "streams: 16 slots x 8192 tokens take 16,384 MiB of KV cache beside 4,096 MiB of weights; "
        "32,768 MiB are available"
    )


def test_what_a_load_needs_is_enough_for_it() -> None:
    """With the least one sequence runs, and with a comfortable amount several do."""
    model = make_model_file()
    needs = memory_needs(model, NOTHING)
    least, comfortable = (
        plan_limits([model], bytes_free, [NOTHING])[0]
        for bytes_free in (needs.least, needs.comfortable)
    )
    with pytest.raises(ModelTooLarge):
        plan_limits([model], needs.least - 2, [NOTHING])

    assert (least.slots, least.context_tokens) == (1, 512)
    assert (comfortable.slots, comfortable.context_tokens) == (4, 4096)
    assert planned_bytes(model, comfortable) <= needs.comfortable


def test_a_quantized_cache_takes_less() -> None:
    """Eight and a half bits a value instead of sixteen."""
    model = make_model_file().with_kv_types(KvType.Q8_0, KvType.Q8_0)

    assert model.kv_bytes_per_token == (128 << 10) * 8.5 / 16
