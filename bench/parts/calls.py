"""What tool calls cost the frontend: a parsed token, and a grammar for many tools."""

import json
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from bench.measurement import CORRAL, Measurement, Result, load_names, median
from bench.stage import Part, Stage
from inference_svc.chat.parsers.formats import FAMILIES, Family, ToolCallFormat, TurnFormat
from inference_svc.chat.parsers.harmony import CHANNEL
from inference_svc.chat.parsers.harmony import MESSAGE as HARMONY_MESSAGE
from inference_svc.chat.parsers.muse import MESSAGE as MUSE_MESSAGE
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.structured_output.compile_job import compile_grammar
from inference_svc.structured_output.compiler import GrammarCompiler, GrammarVocabulary
from inference_svc.structured_output.spec import (
    ID,
    NUMBER,
    SPACE,
    CallableTool,
    OutputSpec,
    ToolCallSpec,
    ToolCallSyntax,
)
from svc_kit.sandbox.jobs import Job

ALLOWED_US, ALLOWED_COLD_MS, ALLOWED_CACHED_MS = 15.0, 50.0, 10.0
WORDS = "Some cities are far away from the sea, and others are not. " * 60
CHARACTERS_PER_TOKEN = 4
SEARCH = '{"type": "object", "properties": {"query": {"type": "string"}}}'
TOOLS = OfferedTools({"search": SEARCH})
OPENINGS = {
    ToolCallFormat.HARMONY: f"{CHANNEL}final{HARMONY_MESSAGE}",
    ToolCallFormat.MUSE: f" to=user{MUSE_MESSAGE}",
    ToolCallFormat.FUNCTIONARY: "all\n",
}
"""What a turn begins with where all of it is in messages."""
COMPILED = (ToolCallFormat.HERMES, ToolCallFormat.QWEN_CODER, ToolCallFormat.GEMMA)
NUM_TOOLS, NUM_FIELDS = 64, 20
VOCABULARY = GrammarVocabulary(1000, {"<think>": 900, "</think>": 901}, (902,))
FIELDS = (
    {"type": "string", "description": "What to search for"},
    {"type": "integer", "minimum": 0},
    {"enum": ["near", "far"]},
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
)
PARSED = "a token of "
COLD, CACHED = "new", "known"


def measure(stage: Stage) -> Iterator[Measurement]:
    """Parse a turn of each family, then compile grammars of tools that are new, then known."""
    for number in range(stage.rounds or stage.sizes(5, 1)):
        for name, family in FAMILIES.items():
            yield Measurement(f"{PARSED}{name}", number, CORRAL, _parsing_us(name, family))
    numbers = count()
    for name in COMPILED:
        yield from stage.runner.run(_compile(name, numbers, stage.sizes(200, 3)))


def _parsing_us(name: ToolCallFormat, family: Family) -> float:
    """The processor time for a token of 4 characters, half of them content, half in a call."""
    text = OPENINGS.get(name, "") + WORDS + "".join(map(_written_call, family.syntaxes[:1]))
    size = CHARACTERS_PER_TOKEN
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    parser = TurnParser(TurnFormat(tool_calls=name), tools=TOOLS)
    start = time.process_time()
    for piece in pieces:
        parser.feed(piece)
        parser.pop_deltas()
    parser.finish()
    return 1e6 * (time.process_time() - start) / len(pieces)


def _written_call(way: ToolCallSyntax) -> str:
    """A call of a tool with a long text."""
    syntax = way.arguments
    arguments = json.dumps({"query": WORDS})
    if syntax is not None:
        begin, end = ('"', '"') if syntax.quotes is None else (*syntax.quotes, ("", ""))[0]
        key_end = syntax.key_end.replace("{type}", "string").replace("{is_string}", "true")
        value = f"{begin}{WORDS}{end}{syntax.end.replace('{key}', 'query')}"
        arguments = f"{syntax.begin}query{key_end}{value}"
    text = f"{way.before}{way.head}search{way.middle}{arguments}{way.tail}{way.after}"
    return text.replace(NUMBER, "0").replace(SPACE, "\n").replace(ID, "abcdef123")


class InProcess:
    """Runs jobs of the sandbox here, so that their processor time is that of this process."""

    async def run(self, job: Job, payload: dict[str, Any], *, key: str = "") -> Any:
        """Compile a grammar."""
        return json.loads(json.dumps(compile_grammar(json.loads(json.dumps(payload)))))


async def _compile(name: ToolCallFormat, numbers: Iterator[int], repeats: int) -> list[Measurement]:
    """The processor time of a grammar of tools that nobody has offered before, and of it again."""
    measurements = []
    compiler = GrammarCompiler(InProcess())
    await compiler.compile(_spec(name, next(numbers)), VOCABULARY)
    for number in range(repeats):
        spec = _spec(name, next(numbers))
        for state in (COLD, CACHED):
            start = time.process_time()
            await compiler.compile(spec, VOCABULARY)
            elapsed_ms = 1e3 * (time.process_time() - start)
            measurements.append(Measurement(_load(name, state), number, CORRAL, elapsed_ms))
    return measurements


def _load(name: ToolCallFormat, state: str) -> str:
    return f"{name}, {state} tools"


def _spec(name: ToolCallFormat, number: int) -> OutputSpec:
    """Tools without common names of arguments."""
    tools = tuple(
        CallableTool(f"tool_{number}_{i}", _schema(number, i), False, f"tools[{i}]")
        for i in range(NUM_TOOLS)
    )
    family = FAMILIES[name]
    calls = ToolCallSpec(
        family.syntaxes, tools, False, True, triggers=family.triggers, excludes=family.excludes
    )
    return OutputSpec(None, calls, None)


def _schema(number: int, tool: int) -> str:
    names = [f"argument_{number}_{tool}_{i}" for i in range(NUM_FIELDS)]
    properties = {name: FIELDS[i % len(FIELDS)] for i, name in enumerate(names)}
    needed = names[: NUM_FIELDS // 2]
    return json.dumps({"type": "object", "properties": properties, "required": needed})


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare the medians of parsed tokens, and medians and 99th percentiles of grammars, with the
    allowed ones."""
    results = []
    for load in load_names(measurements):
        values = sorted(one.value for one in measurements if one.load == load)
        if load.startswith(PARSED):
            results.append(_result(load, median(values), ALLOWED_US, "µs"))
            continue
        allowed_ms = ALLOWED_COLD_MS if COLD in load else ALLOWED_CACHED_MS
        p99 = values[min(len(values) - 1, len(values) * 99 // 100)]
        results.append(_result(f"{load}, p50", median(values), allowed_ms, "ms"))
        results.append(_result(f"{load}, p99", p99, allowed_ms, "ms"))
    return results


def _result(load: str, value: float, allowed: float, unit: str) -> Result:
    return Result(load, (value / allowed,), 1.0, value, allowed, "allowed", unit, "at most")


PART = Part(
    name="calls",
    title="Tool calls",
    text=(
        "The processor time of the frontend for tool calls. A token of each family of models: its"
        f" parser for {CHARACTERS_PER_TOKEN} characters, in a turn of text and a call with a long"
        f" argument. Tools: the grammar of {NUM_TOOLS} tools with {NUM_FIELDS} arguments each,"
        " compiled as in the frontend and its sandbox, for tools that are new and share no names,"
        " and again for the same tools."
    ),
    measure=measure,
    conclude=conclude,
)
