"""`corral models explain --verify` of llama.cpp's vocabularies, which have no weights."""

import json

import pytest
from click.testing import CliRunner

from corral_cli.__main__ import cli
from tests.outside.llama_cpp.source import llama_cpp_source

DIFFERENT = {
    "gemma-4": ["unknown to llama.cpp"] * 3,
    "phi-3": ["equal", "different", "equal"],
    "qwen2": ["different", "equal", "different"],
    "qwen35": ["different", "equal", "different"],
}
"""Without Jinja, llama.cpp adds no default system message (Qwen), and writes a system message where
the template has none (Phi 3)."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("pattern", "count"), [("[lq]*[e2]", 2), pytest.param("*", 17, marks=pytest.mark.slow)]
)
def test_the_vocabularies_of_llama_cpp_are_explained(pattern: str, count: int) -> None:
    """Each file; where llama.cpp knows the template, its prompts are compared."""
    results: dict[str, list[str]] = {}
    for path in sorted(llama_cpp_source().glob(f"models/ggml-vocab-{pattern}.gguf")):
        arguments = ["models", "explain", str(path), "--json", "--verify"]
        explained = json.loads(CliRunner().invoke(cli, arguments).output)
        assert explained["vocabulary"]["tokens"] > 0, path
        assert any("no weights" in line for line in explained["unsure"]), path
        if "verification" in explained:
            compared = explained["verification"].values()
            results[path.stem.removeprefix("ggml-vocab-")] = [each["result"] for each in compared]

    assert len(results) == count
    expected = {name: each for name, each in DIFFERENT.items() if name in results}
    assert {name: each for name, each in results.items() if set(each) != {"equal"}} == expected
