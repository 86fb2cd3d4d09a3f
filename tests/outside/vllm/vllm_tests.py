"""Runs `vllm_program.py` on the tests in vLLM's source package."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.outside.formats import detected_format
from tests.outside.llama_cpp.record_renderings import templates
from tests.outside.packages import Package, package_folder

ROOT: Final = Path(__file__).resolve().parents[3]
PROGRAM: Final = Path(__file__).with_name("vllm_program.py")
VLLM: Final = Package(
    "vllm",
    "0.33.0",
    "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
    re.compile(
        r"(tests/(__init__\.py|(tool_parsers|reasoning|parser)/)|vllm/(parser|tool_parsers)/).*"
        r"|examples/tool_chat_template_.*"
    ),
)
OLMO = "<functions>{{ tools | tojson }}</functions><function_calls>{{ calls }}</think>"
"""What marks the template of OLMo 3, which neither project has."""
CALLS: Final = {
    "apertus": "Apertus-8B-Instruct",
    "deepseekv3": "deepseekv3",
    "deepseekv31": "deepseek-ai-DeepSeek-V3.1",
    "deepseekv32": "deepseek-ai-DeepSeek-V3.2",
    "deepseekv4": "deepseek-ai-DeepSeek-V4",
    "ernie45_moe": "hermes",
    "functiongemma": "functiongemma",
    "gemma4": "google-gemma-4-31B-it",
    "glm47_moe": "GLM-4.7-Flash",
    "glm4_moe": "GLM-4.6",
    "granite": "granite",
    "granite4": "ibm-granite-granite-4.0",
    "granite_20b_fc": "granite_20b_fc",
    "hermes": "hermes",
    "hunyuan_a13b": "hunyuan_a13b",
    "internlm2": "internlm2_tool",
    "jamba": "phi4_mini",
    "kimi_k2": "Kimi-K2-Instruct",
    "lfm2": "LFM2-8B-A1B",
    "llama3_json": "llama3.1_json",
    "llama4_pythonic": "llama4_pythonic",
    "minicpm5xml": "openbmb-MiniCPM5-1B",
    "minimax_m2": "MiniMax-M2",
    "minimax_m3": "MiniMax-M3",
    "olmo3": OLMO,
    "phi4mini": "phi4_mini",
    "poolside_v1": "poolside-Laguna-XS.2",
    "pythonic": "llama3.2_pythonic",
    "qwen3coder": "Qwen3-Coder",
    "step3p5": "StepFun3.5-Flash",
    "xlam": "xlam_qwen",
}
"""The template of each file of tests of tool calls whose family Corral knows: llama.cpp's or
vLLM's. Ernie and Jamba, of which neither has one, write calls like the models of these."""
THOUGHTS: Final = {
    "deepseekr1": "llama-cpp-deepseek-r1",
    "ernie45": "Qwen-Qwen3-0.6B",
    "gemma4": "google-gemma-4-31B-it",
    "glm4_moe": "GLM-4.6",
    "holo2": "Qwen-Qwen3-0.6B",
    "hunyuan": "hunyuan_a13b",
    "kimi_k2": "Kimi-K2-Thinking",
    "minimax_m2": "MiniMax-M2",
    "minimax_m3": "MiniMax-M3",
    "nemotron_v3": "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "olmo3": OLMO,
    "qwen3": "Qwen3.5-4B",
    "step3p5": "StepFun3.5-Flash",
}
"""Likewise of tests of reasoning."""
UNOPENED: Final = ("gemma4", "hunyuan", "minimax_m3")
"""The tests of reasoning whose texts do not begin inside a thought."""


def vllm_templates() -> dict[str, str]:
    """The templates of vLLM's examples that call tools, by their names."""
    paths = sorted(package_folder(VLLM).glob("examples/*.jinja"))
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


def _format(name: str, *, is_open: bool = False) -> dict[str, Any]:
    """The format that the service finds for a template, as plain data."""
    sources = {OLMO: OLMO, **templates(), **vllm_templates()}
    source = sources.get(f"tool_chat_template_{name}") or sources[name]
    return {**detected_format(source)._asdict(), "starts_in_reasoning": is_open}


def run_vllm_tests(*options: str) -> dict[str, Any]:
    """The program's report; `--splits` also splits the texts, which takes most of the time."""
    formats = {
        "calls": {name: _format(template) for name, template in CALLS.items()},
        "thoughts": {
            name: _format(template, is_open=name not in UNOPENED)
            for name, template in THOUGHTS.items()
        },
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "gen")))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        ended = subprocess.run(
            [sys.executable, PROGRAM, package_folder(VLLM), path, json.dumps(formats), *options],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        found: dict[str, Any] = json.loads(path.read_text())
    return found
