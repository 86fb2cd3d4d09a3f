"""Hostile forms against the real pool of limited children."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from inference_svc.sandbox_jobs import RENDER_TEMPLATE
from inference_svc.structured_output.compiler import GrammarCompiler, GrammarVocabulary
from inference_svc.structured_output.spec import OutputFormat, OutputFormatKind, OutputSpec
from svc_kit.errors import GrammarInvalid, SchemaInvalid
from svc_kit.sandbox.pool import SandboxPool

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORDS = GrammarVocabulary(2048, {"<|im_end|>": 2041}, (2041,))
LIMIT_S = 2.0
RENDERING = {
    "template": "{{ messages[0].content }}",
    "now": "2026-01-01T00:00:00",
    "variables": {"messages": [{"role": "user", "content": "x"}], "tools": None},
}
HOSTILE: dict[str, Any] = {
    "doubling patterns": {"allOf": [{"pattern": f"^.*a.{{{n}}}b"} for n in range(40)]},
    "a large divisor": {"type": "integer", "multipleOf": 99_999_989},
    "nesting": json.loads('{"items":' * 200 + "{}" + "}" * 200),
    "endless references": {"$ref": "#"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    """A pool whose children have read the vocabulary and rendered the template once."""
    async with SandboxPool() as running:
        compiler = GrammarCompiler(running)
        await compiler.compile(a_form(OutputFormatKind.REGEX, "a+"), WORDS)
        await running.run(RENDER_TEMPLATE, RENDERING, key="proven")
        yield running


def a_form(kind: OutputFormatKind, text: str) -> OutputSpec:
    """The form alone."""
    return OutputSpec(OutputFormat(kind, text, "constraint"), None, None)


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_schema_is_refused_in_time(pool: SandboxPool, name: str) -> None:
    """Within two seconds, as the caller's fault; templates are rendered meanwhile."""
    asked = a_form(OutputFormatKind.JSON_SCHEMA, json.dumps(HOSTILE[name]))
    started = time.monotonic()
    refusal = asyncio.create_task(GrammarCompiler(pool).compile(asked, WORDS))
    rendered = 0
    while not refusal.done():
        assert (await pool.run(RENDER_TEMPLATE, RENDERING, key="proven"))["text"] == "x"
        rendered += 1

    with pytest.raises(SchemaInvalid):
        await refusal
    assert time.monotonic() - started < LIMIT_S
    assert rendered > 0


async def test_a_good_schema_passes_beside_hostile_ones(pool: SandboxPool) -> None:
    """It waits for a child at most, never for long."""
    compiler = GrammarCompiler(pool)
    bad = a_form(OutputFormatKind.JSON_SCHEMA, json.dumps(HOSTILE["a large divisor"]))
    worse = a_form(OutputFormatKind.REGEX, "(.{1,900}a.{1,900}){1,900}" * 40)
    tasks = [asyncio.create_task(compiler.compile(asked, WORDS)) for asked in (bad, worse)]
    good = a_form(OutputFormatKind.JSON_SCHEMA, '{"type": "integer", "minimum": 7}')

    assert '"minimum": 7' in await compiler.compile(good, WORDS)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[0], SchemaInvalid)
    assert isinstance(outcomes[1], GrammarInvalid | str)
