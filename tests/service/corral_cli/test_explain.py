"""`corral models explain`: what the service will do with a file, without a server."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from corral_cli.__main__ import cli
from inference_svc.models.sources import BUNDLED_FOLDER, BUNDLED_PATH
from svc_kit.lifecycle import StartupError
from tests.support.engine_stand_in import run_engine
from tests.support.gguf_files import F32Tensor, Signed, gguf_bytes, model_metadata
from tests.support.model_kinds import TOKENS, write_model_of_kind

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

MENTIONS = "{# [TOOL_CALLS] <|tool_calls_section_begin|> #}"


def explain(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["models", "explain", *map(str, arguments)])


def explain_json(*arguments: str | Path) -> Any:
    return json.loads(explain(*arguments, "--json").output)


def write_decoder(folder: Path, **changes: Any) -> Path:
    """Write a model whose vocabulary can be loaded; `changes` are as in `model_metadata`."""
    kinds = [Signed(kind) for kind in (2, 3, 3, *(6 for _ in TOKENS[3:]))]
    vocabulary = {
        "tokenizer__ggml__model": "llama",
        "tokenizer__ggml__tokens": TOKENS,
        "tokenizer__ggml__scores": [0.0] * len(TOKENS),
        "tokenizer__ggml__token_type": kinds,
        "tokenizer__ggml__eos_token_id": 2,
        "llama__attention__layer_norm_rms_epsilon": 1e-6,
    }
    path = folder / "tiny.gguf"
    metadata = model_metadata(**(vocabulary | changes))
    path.write_bytes(gguf_bytes(metadata, [F32Tensor("w", (8, 4))]))
    return path


def test_a_model_is_explained_with_what_lies_beside_it() -> None:
    """Sizes, the plan of memory, tokens, template, probes, projector and adapters that fit; its
    prompts are those of llama.cpp."""
    explained = explain_json("bundled", "--verify")
    model, template = explained["model"], explained["template"]

    assert (model["architecture"], model["class"], model["quantization"]) == (
        "llama",
        "decoder",
        "q8_0",
    )
    assert sum(model["tensor_types"].values()) == pytest.approx(1, abs=1e-3)
    assert explained["memory"]["fits"]
    assert explained["memory"]["context_tokens"] == model["trained_context_tokens"] == 2048
    assert explained["vocabulary"]["end_tokens"] == {"<|endoftext|>": 2039, "<|im_end|>": 2041}
    assert (template["tool_calls"], template["trigger"]) == ("hermes", "<tool_call>")
    assert (template["recognized_by"], template["thinking"]) == (["<tool_call>"], "switchable")
    assert all(template["probes"].values())
    assert {each["result"] for each in explained["verification"].values()} == {"equal"}
    assert explained["beside"]["projector"] == "demo-vision-mmproj-q8_0.gguf"
    assert explained["beside"]["adapters"] == [
        "demo-lora-pirate-f16.gguf",
        "demo-lora-robot-f16.gguf",
    ]
    assert explained["unsure"] == []


def test_settings_of_the_model_count(tmp_path: Path) -> None:
    """Limits, template formats and sampling are those of the service that has the settings."""
    config = tmp_path / "corral.toml"
    config.write_text(
        "[inference.per_model.demo-chat]\nslots = 3\nprojector = 'none'\n"
        "[inference.per_model.other]\nslots = 1\n"
    )
    explained = explain_json("bundled", "--config", config)

    assert (explained["memory"]["slots"], explained["beside"]["projector"]) == (3, None)


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({}, "the file has no chat template"),
        ({"tokenizer__chat_template": CHATML}, "the template ignores tools"),
        ({"tokenizer__chat_template": "{{ raise_exception('no') }}"}, "the template fails: "),
        ({"tokenizer__chat_template": CHATML + MENTIONS}, "the tool calls of mistral, kimi: "),
    ],
    ids=["no template", "no tools", "raises", "two formats"],
)
def test_what_is_not_certain_is_said(changes: dict[str, Any], doubt: str, tmp_path: Path) -> None:
    """Such as a missing template; the service serves the model nevertheless."""
    explained = explain_json(write_decoder(tmp_path, **changes))

    assert [line for line in explained["unsure"] if doubt in line] != []


def test_other_classes_have_no_template(tmp_path: Path) -> None:
    """An encoder-decoder model generates, but does not chat."""
    explained = explain_json(write_model_of_kind("t5", tmp_path / "t5.gguf"))

    assert explained["model"]["class"] == "encoder_decoder"
    assert "template" not in explained


def test_a_model_that_does_not_fit_is_explained(tmp_path: Path) -> None:
    config = tmp_path / "corral.toml"
    config.write_text("[inference.pool]\nmemory_mib = 1\n")
    output = explain("bundled", "--config", config).output

    assert "  fits: no\n" in output
    assert "  reason: The model 'demo-chat' " in output


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "there is no such file"),
        (b"text", "not a GGUF file"),
        (BUNDLED_PATH.read_bytes()[:3000], "the file is too short"),
        (BUNDLED_PATH.read_bytes()[:8] + b"\xff" * 3000, "it claims 18446744073709551615"),
        ((BUNDLED_FOLDER / "demo-lora-robot-f16.gguf").read_bytes(), "a LoRA adapter"),
    ],
    ids=["missing", "text", "cut", "counts", "adapter"],
)
def test_a_bad_file_is_an_error_with_the_reason(
    data: bytes | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.gguf"
    if data is not None:
        path.write_bytes(data)
    result = explain(path)

    assert isinstance(result.exception, StartupError)
    assert problem in str(result.exception)


def test_of_an_upstream_is_explained_what_its_engine_honours(tmp_path: Path) -> None:
    """It is connected and asked; one that is refused is explained with the reason."""
    config = tmp_path / "corral.toml"
    with run_engine("llama_server") as engine:
        table = f'[inference.upstreams.big]\nurls = ["{engine.url}"]\ntokenizer = "bundled"\n'
        config.write_text(table)
        upstream = explain_json("big", "--config", config)["upstream"]
        config.write_text(f'{table}model = "another"\n')
        refused = explain_json("big", "--config", config)["upstream"]
        config.write_text(table.replace('tokenizer = "bundled"', 'kind = "openai"'))
        in_text_mode = explain_json("big", "--config", config)
        config.write_text(table.replace('"bundled"', '"engine"'))
        lost = explain("big", "--config", config)
        engine.state.source = str(BUNDLED_PATH)
        told = explain_json("big", "--config", config)

    assert upstream["engine"].startswith("llama-server")
    assert upstream["urls"] == {engine.url: "up"}
    assert upstream["tokenizer"] == "bundled"
    assert told["upstream"] == {**upstream, "tokenizer": str(BUNDLED_PATH)}
    assert told["vocabulary"]["tokens"] == 2048
    assert "it says that its tokenizer is 'demo-chat'" in str(lost.exception)
    assert "top_k" in upstream["sampling"]
    assert "allowed_token_ids" in upstream["ignores"]
    assert "it serves no model 'another'" in refused["problem"]
    assert in_text_mode["upstream"]["text_mode"]
    assert in_text_mode["upstream"]["urls"] == {engine.url: "up"}
    assert in_text_mode["unsure"] == [
        "text mode: of what the engine honours, only log probabilities are probed"
    ]
    assert "template" not in in_text_mode
