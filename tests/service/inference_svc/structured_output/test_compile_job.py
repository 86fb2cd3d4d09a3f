"""Expensive output formats in the real pool of limited child processes."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from inference_svc.sandbox_jobs import RENDER_TEMPLATE
from inference_svc.structured_output.compiler import (
    CompiledGrammar,
    GrammarCompiler,
    GrammarVocabulary,
)
from inference_svc.structured_output.spec import OutputFormat, OutputFormatKind, OutputSpec
from svc_kit.errors import GrammarInvalid, SchemaInvalid
from svc_kit.sandbox.pool import SandboxPool

pytestmark = pytest.mark.asyncio(loop_scope="module")

VOCABULARY = GrammarVocabulary(2048, {"<|im_end|>": 2041}, (2041,))
RENDER_PAYLOAD = {
    "template": "{{ messages[0].content }}",
    "now": "2026-01-01T00:00:00",
    "thinking": (None, None),
    "variables": {"messages": [{"role": "user", "content": "x"}], "tools": None},
}
EXPENSIVE_SCHEMAS: dict[str, Any] = {
    "exponential patterns": {"allOf": [{"pattern": f"^.*a.{{{n}}}b"} for n in range(40)]},
    "a large divisor": {"type": "integer", "multipleOf": 99_999_989},
    "deep nesting": json.loads('{"items":' * 200 + "{}" + "}" * 200),
    "a circular reference": {"$ref": "#"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    """A pool whose child processes have loaded the vocabulary and rendered the template once."""
    async with SandboxPool() as pool:
        await GrammarCompiler(pool).compile(make_spec(OutputFormatKind.REGEX, "a+"), VOCABULARY)
        await pool.run(RENDER_TEMPLATE, RENDER_PAYLOAD, key="known")
        yield pool


def make_spec(kind: OutputFormatKind, text: str) -> OutputSpec:
    """An output format without tools or reasoning."""
    return OutputSpec(OutputFormat(kind, text, "constraint"), None, None)


@pytest.mark.parametrize("name", EXPENSIVE_SCHEMAS)
async def test_an_expensive_schema_is_refused(pool: SandboxPool, name: str) -> None:
    """As the caller's error; templates are rendered meanwhile."""
    spec = make_spec(OutputFormatKind.JSON_SCHEMA, json.dumps(EXPENSIVE_SCHEMAS[name]))
    compilation = asyncio.create_task(GrammarCompiler(pool).compile(spec, VOCABULARY))
    num_rendered = 0
    while not compilation.done():
        assert (await pool.run(RENDER_TEMPLATE, RENDER_PAYLOAD, key="known"))["text"] == "x"
        num_rendered += 1

    with pytest.raises(SchemaInvalid):
        await compilation
    assert num_rendered > 0


async def test_a_valid_schema_compiles_beside_expensive_ones(pool: SandboxPool) -> None:
    """It may have to wait for a child process."""
    compiler = GrammarCompiler(pool)
    divisor = json.dumps(EXPENSIVE_SCHEMAS["a large divisor"])
    specs = [
        make_spec(OutputFormatKind.JSON_SCHEMA, divisor),
        make_spec(OutputFormatKind.REGEX, "(.{1,900}a.{1,900}){1,900}" * 40),
    ]
    tasks = [asyncio.create_task(compiler.compile(spec, VOCABULARY)) for spec in specs]
    valid = make_spec(OutputFormatKind.JSON_SCHEMA, '{"type": "integer", "minimum": 7}')

    assert '"minimum": 7' in (await compiler.compile(valid, VOCABULARY)).text
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], SchemaInvalid)
    assert isinstance(results[1], GrammarInvalid | CompiledGrammar)
