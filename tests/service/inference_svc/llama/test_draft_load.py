"""Loading of draft models in the engine process: those that cannot draft are refused by name."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine_client.messages import EngineConfig
from inference_svc.engine_process.model_load import load
from inference_svc.llama.weights import ModelLoadError
from inference_svc.models.sources import BUNDLED_DRAFT_PATH
from tests.support.llama_engines import finished_event, make_settings, run_engine
from tests.support.model_kinds import write_model_of_kind
from tests.support.sequences import make_request
from tools.long_model import write_blocks

SMALL: dict[str, Any] = {
    "context_tokens": 256,
    "batch_tokens": 256,
    "ubatch_tokens": 128,
    "slots": 2,
}


def _config(draft: Path, path: Path | None = None) -> EngineConfig:
    settings = make_settings(**SMALL, draft_tokens=8)
    if path is not None:
        settings = replace(settings, path=path)
    return EngineConfig(
        "demo",
        settings,
        chunk_cap=64,
        threads=1,
        cores=1,
        draft=replace(settings, path=draft, draft_tokens=0),
    )


def test_the_bundled_draft_model_is_loaded_and_measured() -> None:
    """Its vocabulary is that of the demo model. A restart does not measure again."""
    config = _config(BUNDLED_DRAFT_PATH)
    measured = load(config).ready.warm_up
    again = load(replace(config, warm_up=measured))

    assert measured.draft_step_times is not None
    assert set(measured.draft_step_times) == {1, 2}
    assert again.ready.warm_up == measured
    assert again.served is not None
    request = make_request(0, prompt=range(300, 340), sampling=Sampling(temperature=0.0))
    events = run_engine(again.served.engine, request)
    assert finished_event(events, 0).num_output_tokens > 0


def _other_token(data: bytes) -> bytes:
    return data.replace("Ġcapital".encode(), "Ġcapitel".encode(), 1)


def _other_end(data: bytes) -> bytes:
    key = b"tokenizer.ggml.eos_token_id" + struct.pack("<I", 4)
    assert key in data
    at = data.index(key) + len(key)
    return data[:at] + struct.pack("<I", 7) + data[at + 4 :]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_other_token, r"its token \d+ is b'\\xc4\\xa0capitel' .* of b'\\xc4\\xa0capital'"),
        (_other_end, "its eos is 7 instead of 2041"),
    ],
    ids=["token", "end"],
)
def test_another_vocabulary_is_refused_with_the_first_difference(
    tmp_path: Path, change: Callable[[bytes], bytes], problem: str
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(change(BUNDLED_DRAFT_PATH.read_bytes()))

    with pytest.raises(ModelLoadError, match=rf"per_model.demo.draft_model: .*{problem}"):
        load(_config(other))


@pytest.mark.parametrize("draft_is_larger", [True, False])
def test_unused_tokens_at_the_end_are_no_difference(tmp_path: Path, draft_is_larger: bool) -> None:
    """Models of one family are padded to different sizes; a prompt may have any token."""
    padded = write_blocks(tmp_path / "padded.gguf", (0, 1), 2048, num_unused=64)
    plain = write_blocks(tmp_path / "plain.gguf", (0, 1), 2048)
    paths = (padded, plain) if draft_is_larger else (plain, padded)
    served = load(_config(*paths)).served
    assert served is not None
    last = 2048 + (0 if draft_is_larger else 64) - 1
    request = make_request(0, prompt=[*range(300, 340), last], max_tokens=32, ignore_eos=True)

    assert finished_event(run_engine(served.engine, request), 0).num_output_tokens == 32


def test_a_vocabulary_of_another_size_is_refused(tmp_path: Path) -> None:
    small = write_model_of_kind("window", tmp_path / "small.gguf")

    with pytest.raises(ModelLoadError, match=r"small.gguf is another one: its token 0 "):
        load(_config(small))


def test_a_recurrent_state_cannot_draft_nor_verify(tmp_path: Path) -> None:
    """What is rejected could not be removed from it."""
    plain = write_model_of_kind("window", tmp_path / "plain.gguf")
    recurrent = write_model_of_kind("recurrent", tmp_path / "recurrent.gguf")

    with pytest.raises(ModelLoadError, match=r"draft_model: recurrent\.gguf has a recurrent state"):
        load(_config(recurrent, plain))
    with pytest.raises(ModelLoadError, match="draft_model: demo has a recurrent state"):
        load(_config(plain, recurrent))


def test_a_damaged_file_is_refused_by_the_name_of_the_setting(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(BUNDLED_DRAFT_PATH.read_bytes()[:200_000])

    with pytest.raises(ModelLoadError, match=r"per_model\.demo\.draft_model: .*cannot load"):
        load(_config(damaged))
