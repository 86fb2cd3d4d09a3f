"""Command lines of the peers."""

from itertools import pairwise
from pathlib import Path

import pytest

from bench.servers import LAYOUTS, EngineShape, batched_bench_command, llama_server_command

SHAPE = EngineShape(Path("m.gguf"), slots=16, context_tokens=512, threads=2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_same_slots_threads_and_context(layout: str) -> None:
    """Layouts differ only in their KV cache options."""
    command = llama_server_command(Path("llama-server"), SHAPE, 1234, layout)

    options = dict(pairwise(command))
    assert options["--parallel"] == "16"
    assert options["--ctx-size"] == str(16 * 512)
    assert options["--threads"] == options["--threads-batch"] == "2"
    assert ("--kv-unified" in command) == layout.startswith("unified")
    assert ("--cache-prompt" in command) == layout.endswith("cache")


def test_batched_bench_can_share_one_prompt() -> None:
    """It gives the limit for requests with one system prompt."""
    command = batched_bench_command(Path("b"), SHAPE, 800, 32, (1, 16), shared_prompt=True)

    assert "-pps" in command
    assert command[command.index("-npl") + 1] == "1,16"
