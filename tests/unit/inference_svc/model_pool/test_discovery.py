"""Tests of building the catalog and the engine configurations from settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from inference_svc.config import (
    EngineSettings,
    InferenceSettings,
    MediaSettings,
    PrefixGroupSettings,
)
from inference_svc.llama.backend import BackendSettings
from inference_svc.machine import available_memory_bytes
from inference_svc.model_pool.discovery import find_models
from inference_svc.model_pool.engine_config import EngineConfigBuilder
from inference_svc.model_pool.eviction import ModelState
from inference_svc.model_settings import ModelSettings
from inference_svc.models.device_memory import LayerSplit
from inference_svc.models.file_identity import FileStamp
from inference_svc.models.memory_plan import Layout, RequestedLimits, ResolvedLimits
from inference_svc.models.metadata import ModelClass
from inference_svc.models.placement import FlashAttention, LoadPolicy, Rope, RopeScaling, SplitMode
from model_files.ggml_types import KvType
from svc_kit.lifecycle import StartupError

ENGINE = EngineSettings(slots=4, threads=2, gpu_layers=7)


def make_settings(**overrides: Any) -> InferenceSettings:
    """The demo model as "plain" and, with these overrides, as "special"."""
    models = ["plain=bundled", "special=bundled"]
    per_model = {"special": ModelSettings(**overrides)}
    return InferenceSettings(models=models, per_model=per_model, engine=ENGINE)


def backend(name: str, **overrides: Any) -> BackendSettings:
    settings = make_settings(**overrides)
    entry = find_models(settings).find_model(name)
    limits = ResolvedLimits(4, 512, 0, "")
    config = EngineConfigBuilder(settings, num_models=2).build(entry.file, entry.requested, limits)
    return config.backend


def test_settings_of_a_model_override_those_of_the_engine() -> None:
    """Names, policy and limits."""
    catalog = find_models(
        make_settings(
            slots=1, aliases=["s"], load="manual", pinned=True, kv_type_k="q8_0", layout="unified"
        )
    )
    plain, special = catalog.find_model("plain"), catalog.find_model("s")

    assert plain.requested == RequestedLimits(slots=4, threads=2)
    assert special.requested == RequestedLimits(slots=1, threads=2, layout=Layout.UNIFIED)
    assert (plain.policy, special.policy) == (LoadPolicy.START, LoadPolicy.MANUAL)
    assert special.resident.is_pinned
    assert special.file.kv_bytes_per_token < plain.file.kv_bytes_per_token


@pytest.mark.parametrize(("requested", "limit"), [(None, 8192), (1 << 14, 1 << 14)])
def test_the_input_limit_of_an_encoder_is_the_requested_context(
    requested: int | None, limit: int
) -> None:
    """Unset, it is a modest default."""
    settings = make_settings()
    file = replace(
        find_models(settings).find_model("plain").file,
        model_class=ModelClass.ENCODER,
        is_causal=False,
        trained_context_tokens=1 << 15,
    )
    limits = ResolvedLimits(1, requested or 1 << 15, 0, "")
    builder = EngineConfigBuilder(settings, num_models=2)
    embedding = builder.build(file, RequestedLimits(context_tokens=requested), limits).embedding

    assert embedding is not None
    assert embedding.input_tokens == limit


def test_an_engine_is_configured_with_usable_cores_and_file_stamps() -> None:
    """It computes on all cores unless threads are set."""
    settings = InferenceSettings(models=["bundled"])
    (entry,) = find_models(settings)
    config = EngineConfigBuilder(settings, num_models=1, cores=3).build(
        entry.file, entry.requested, ResolvedLimits(4, 512, 0, "")
    )

    assert (config.cores, config.backend.threads, config.threads) == (3, 3, None)
    assert config.stamps == tuple(map(FileStamp.of, entry.file.paths))


def test_saved_prefixes_have_an_eighth_of_the_memory_for_all_models_together() -> None:
    """At most 8 GiB, as llama-server, unless a size is set."""
    settings = make_settings()
    entry, limits = find_models(settings).find_model("plain"), ResolvedLimits(1, 512, 0, "")

    def saved_bytes(num_models: int, settings: InferenceSettings = settings) -> int:
        builder = EngineConfigBuilder(settings, num_models=num_models)
        return builder.build(entry.file, entry.requested, limits).saved_bytes

    available = available_memory_bytes()
    assert saved_bytes(1) == pytest.approx(min(available / 8, 8 << 30), rel=0.2)
    assert saved_bytes(4) == pytest.approx(saved_bytes(1) / 4, rel=0.2)
    of_size = settings.model_copy(update={"engine": EngineSettings(saved_prefix_mib=3)})
    assert saved_bytes(4, of_size) == 3 << 20


@pytest.mark.parametrize(
    ("engine_threads", "encoder_threads", "competes"),
    [(None, None, True), (2, 2, False), (2, 3, True), (4, 1, True)],
)
def test_an_encoder_without_cores_of_its_own_competes_with_the_engine(
    engine_threads: int | None, encoder_threads: int | None, *, competes: bool
) -> None:
    """Of four cores. Both compute on all of them unless threads are set."""
    settings = InferenceSettings(
        models=["bundled"],
        engine=EngineSettings(threads=engine_threads),
        media=MediaSettings(encoder_threads=encoder_threads),
    )
    (entry,) = find_models(settings)
    assert entry.file.projector is not None
    builder = EngineConfigBuilder(settings, num_models=1, cores=4)

    config = builder.build_encoder(entry.file, entry.file.projector)

    assert config.competes_for_cores == competes


def test_an_engine_is_configured_with_the_placement_of_its_model() -> None:
    """Layers, devices and shares, from the engine's settings unless overridden."""
    assert backend("plain").placement.gpu_layers == 7
    placement = backend(
        "special",
        gpu_layers=0,
        devices=["CPU"],
        split_mode="row",
        tensor_split=[3.0, 1.0],
        main_device=1,
    ).placement

    assert (placement.gpu_layers, placement.devices) == (0, ("CPU",))
    assert (placement.split_mode, placement.tensor_split) == (SplitMode.ROW, (3.0, 1.0))
    assert placement.main_device == 1


def test_the_pool_plans_memory_with_the_placement_of_the_engine() -> None:
    """And with the number of layers in the file."""
    entry = find_models(make_settings(devices=["CUDA1"])).find_model("special")

    placement = backend("special", devices=["CUDA1"]).placement
    assert entry.resident.layer_split == LayerSplit(placement, entry.file.num_layers)


@pytest.mark.parametrize("share", [-1.0, float("inf"), float("nan")])
def test_device_shares_must_be_finite_and_not_negative(share: float) -> None:
    """llama.cpp would place layers on a device that does not exist."""
    with pytest.raises(ValidationError, match="tensor_split"):
        ModelSettings(tensor_split=(1.0, share))


def test_an_engine_is_configured_with_the_attention_settings_of_its_model() -> None:
    """KV cache types, flash attention and RoPE."""
    attention = backend(
        "special",
        kv_type_k="q8_0",
        kv_type_v="q4_0",
        flash_attention="on",
        rope_scaling="yarn",
        rope_frequency_scale=0.5,
    ).attention

    assert (attention.key_type, attention.value_type) == (KvType.Q8_0, KvType.Q4_0)
    assert attention.flash_attention is FlashAttention.ON
    assert attention.rope == Rope(RopeScaling.YARN, frequency_scale=0.5)


def test_settings_of_an_unknown_model_are_refused() -> None:
    """A misspelt name would have no effect."""
    settings = InferenceSettings(per_model={"demo": ModelSettings(slots=1)})
    with pytest.raises(StartupError, match="no model is called 'demo'; there are demo-chat"):
        find_models(settings)


def test_quantized_values_need_flash_attention() -> None:
    """llama.cpp would refuse to load the model."""
    with pytest.raises(ValueError, match="flash_attention"):
        ModelSettings(kv_type_v=KvType.Q8_0, flash_attention=FlashAttention.OFF)


def test_a_project_is_in_at_most_one_prefix_group() -> None:
    """Its sharing must be unambiguous."""
    groups = {
        name: PrefixGroupSettings(projects=projects)
        for name, projects in {"a": ["red", "green"], "b": ["blue", "red"]}.items()
    }

    with pytest.raises(ValidationError, match=r"prefix_groups\.b: red is in another group too"):
        InferenceSettings(prefix_groups=groups)


def test_an_engine_scales_logits_as_the_file_of_its_model_needs() -> None:
    """The first form of T5 does."""
    settings = InferenceSettings(models=["bundled"])
    entry = find_models(settings).find_model("")
    file = replace(entry.file, logit_scale=0.5)
    builder = EngineConfigBuilder(settings, num_models=1)
    config = builder.build(file, entry.requested, ResolvedLimits(4, 512, 0, ""))

    assert config.backend.logit_scale == 0.5


@pytest.mark.parametrize(
    ("ubatch_tokens", "batch_tokens", "expected"),
    [(None, 2048, 1120), (None, 1000, "batch_tokens is 1000"), (512, 2048, "ubatch_tokens is 512")],
)
def test_a_picture_that_is_computed_at_once_fits_into_a_compute_batch(
    ubatch_tokens: int | None, batch_tokens: int, expected: int | str
) -> None:
    """Batches are enlarged unless the operator has chosen a smaller size."""
    engine = EngineSettings(ubatch_tokens=ubatch_tokens, batch_tokens=batch_tokens)
    settings = InferenceSettings(models=["bundled"], engine=engine)
    entry = find_models(settings).find_model("")
    builder = EngineConfigBuilder(settings, num_models=1)
    limits = ResolvedLimits(4, 512, 0, "")

    if isinstance(expected, str):
        with pytest.raises(StartupError, match=f"a picture takes up to 1120 tokens.*{expected}"):
            builder.build(entry.file, entry.requested, limits, joint_tokens=1120)
    else:
        config = builder.build(entry.file, entry.requested, limits, joint_tokens=1120)
        assert config.backend.ubatch_tokens == expected


def test_a_model_that_cannot_be_used_is_failed_and_not_the_default(tmp_path: Path) -> None:
    """Whether its own file is damaged or that of its projector."""
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF")
    models = [str(damaged), "blind=bundled", "good=bundled"]
    per_model = {"blind": ModelSettings(projector=str(damaged))}
    catalog = find_models(InferenceSettings(models=models, per_model=per_model))
    states = {entry.name: entry.resident.state for entry in catalog}

    assert catalog.find_model("").name == "good"
    assert states == {
        "damaged": ModelState.FAILED,
        "blind": ModelState.FAILED,
        "good": ModelState.AVAILABLE,
    }
    assert "truncated" in catalog.find_model("damaged").resident.problem
    assert catalog.find_model("blind").resident.problem.startswith(f"projector {damaged}")
