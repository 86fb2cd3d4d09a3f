"""From settings to the models that are known, and to what their engines are told."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from inference_svc.config import (
    EngineSettings,
    InferenceSettings,
    ModelSettings,
    PrefixGroupSettings,
)
from inference_svc.llama.backend import BackendSettings
from inference_svc.model_pool.discovery import find_models
from inference_svc.model_pool.engine_config import EngineConfigBuilder
from inference_svc.models.device_memory import LayerSplit
from inference_svc.models.file_identity import FileStamp
from inference_svc.models.memory_plan import Layout, RequestedLimits, ResolvedLimits
from inference_svc.models.metadata import ModelClass
from inference_svc.models.placement import FlashAttention, LoadPolicy, Rope, RopeScaling, SplitMode
from model_files.ggml_types import KvType
from svc_kit.lifecycle import StartupError

ENGINE = EngineSettings(slots=4, threads=2, gpu_layers=7)


def settings(**own: Any) -> InferenceSettings:
    """The demo model twice; `own` is what one of them has of its own."""
    models = ["plain=bundled", "special=bundled"]
    per_model = {"special": ModelSettings(**own)}
    return InferenceSettings(models=models, per_model=per_model, engine=ENGINE)


def backend(name: str, **own: Any) -> BackendSettings:
    """What a model's engine is told."""
    given = settings(**own)
    known = find_models(given).find_model(name)
    sizes = ResolvedLimits(4, 512, 0, "")
    boot = EngineConfigBuilder(given, num_models=2).boot(known.file, known.requested, sizes)
    return boot.model.backend


def test_a_model_has_what_is_its_own_and_the_rest_from_the_engine() -> None:
    """Names, policy, sizes."""
    catalog = find_models(
        settings(
            slots=1, aliases=["s"], load="manual", pinned=True, kv_type_k="q8_0", layout="unified"
        )
    )
    plain, special = catalog.find_model("plain"), catalog.find_model("s")

    assert plain.requested == RequestedLimits(slots=4, threads=2)
    assert special.requested == RequestedLimits(slots=1, threads=2, layout=Layout.UNIFIED)
    assert (plain.policy, special.policy) == (LoadPolicy.START, LoadPolicy.MANUAL)
    assert special.resident.is_pinned
    assert special.file.kv_bytes_per_token < plain.file.kv_bytes_per_token


def test_an_encoder_has_the_longest_input_that_a_load_asks_for() -> None:
    """The settings are not the last word; without any word the bound is a modest one."""
    given = settings()
    file = replace(
        find_models(given).find_model("plain").file,
        model_class=ModelClass.ENCODER,
        is_causal=False,
        trained_context_tokens=1 << 15,
    )
    sizes = ResolvedLimits(1, 1 << 15, 0, "")
    longest = []
    for asked in (None, 1 << 14):
        sizes = replace(sizes, context_tokens=asked or 1 << 15)
        requested = RequestedLimits(context_tokens=asked)
        boot = EngineConfigBuilder(given, num_models=2).boot(file, requested, sizes)
        embedding = boot.model.embedding
        longest.append(embedding and embedding.input_tokens)

    assert longest == [8192, 1 << 14]


def test_an_engine_is_told_what_it_may_use_and_what_its_files_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cores of the container, not of the machine."""
    monkeypatch.setattr("inference_svc.model_pool.engine_config.available_cores", lambda: 3)
    given = InferenceSettings(models=["bundled"])
    (known,) = find_models(given)
    boot = EngineConfigBuilder(given, num_models=1).boot(
        known.file, known.requested, ResolvedLimits(4, 512, 0, "")
    )

    assert (boot.cores, boot.model.backend.threads, boot.model.threads) == (3, 3, None)
    assert boot.model.stamps == tuple(map(FileStamp.of, known.file.paths))


def test_an_engine_is_told_where_its_model_goes() -> None:
    """Layers, devices and shares; for all alike unless a model says otherwise."""
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


def test_the_pool_plans_with_the_placement_that_the_engine_is_told() -> None:
    """And with the layers of the file."""
    known = find_models(settings(devices=["CUDA1"])).find_model("special")

    told = backend("special", devices=["CUDA1"]).placement
    assert known.resident.spread == LayerSplit(told, known.file.num_layers)


@pytest.mark.parametrize("share", [-1.0, float("inf"), float("nan")])
def test_shares_of_devices_are_numbers_that_can_be_added(share: float) -> None:
    """llama.cpp would give layers to a device that is not there."""
    with pytest.raises(ValidationError, match="tensor_split"):
        ModelSettings(tensor_split=(1.0, share))


def test_an_engine_is_told_how_its_model_attends() -> None:
    """Cache types, flash attention and rope."""
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


def test_settings_of_a_model_that_is_not_there_are_a_mistake() -> None:
    """A misspelt name would silently change nothing."""
    wrong = InferenceSettings(per_model={"demo": ModelSettings(slots=1)})
    with pytest.raises(StartupError, match="no model is called 'demo'; there are demo-chat"):
        find_models(wrong)


def test_quantized_values_need_flash_attention() -> None:
    """llama.cpp would refuse it at load."""
    with pytest.raises(ValueError, match="flash_attention"):
        ModelSettings(kv_type_v=KvType.Q8_0, flash_attention=FlashAttention.OFF)


def test_a_project_is_in_one_group_at_most() -> None:
    """Whose prefixes it shares must be clear."""
    groups = {
        name: PrefixGroupSettings(projects=projects)
        for name, projects in {"a": ["red", "green"], "b": ["blue", "red"]}.items()
    }

    with pytest.raises(ValidationError, match=r"prefix_groups\.b: red is in another group too"):
        InferenceSettings(prefix_groups=groups)
