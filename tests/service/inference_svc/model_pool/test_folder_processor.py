"""The processor of a model from both kinds of its files: prompts and grammars are the same."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from llguidance import LLMatcher, LLTokenizer
from prometheus_client import CollectorRegistry

from inference_svc.chat.conversation import Conversation, Message, Role, TextPart
from inference_svc.chat.parsers.formats import FAMILIES, ToolCallFormat
from inference_svc.chat.templates import ChatTemplates
from inference_svc.config import InferenceSettings
from inference_svc.engine_client.features import Features
from inference_svc.model_pool.catalog import ModelEntry, ModelProcessor, with_tokens
from inference_svc.model_pool.eviction import Resident
from inference_svc.model_pool.loader import ModelLoader
from inference_svc.models.memory_plan import RequestedLimits
from inference_svc.models.sources import BUNDLED, BUNDLED_PATH, RemoteFile, resolve_tokenizer
from inference_svc.structured_output.compiler import GrammarCompiler
from inference_svc.structured_output.notations import single_lark
from inference_svc.structured_output.spec import (
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    ToolCallSpec,
)
from svc_kit.lifecycle import StartupError
from svc_kit.metrics import EngineMetrics
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from tests.support.hf_folders import write_folder
from tools.demo_model.export_hf import export_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(SandboxSettings(min_children=1, max_children=1)) as pool:
        yield pool


def refuse_download(remote: RemoteFile) -> Path:
    raise AssertionError(f"a download of {remote} was started")


async def open_processor(pool: SandboxPool, source: str) -> ModelProcessor:
    loader = ModelLoader(
        InferenceSettings(),
        num_models=1,
        sandbox=pool,
        templates=ChatTemplates(pool),
        metrics=EngineMetrics(CollectorRegistry()),
    )
    file = resolve_tokenizer(source, "m", refuse_download)
    entry = ModelEntry(file, RequestedLimits(), Resident("m"))
    return with_tokens(await loader.open_processor(entry))


async def test_prompts_and_grammars_of_a_folder_are_those_of_the_gguf_file(
    pool: SandboxPool, tmp_path: Path
) -> None:
    export_tokenizer(BUNDLED_PATH, tmp_path)
    both = [await open_processor(pool, source) for source in (BUNDLED, str(tmp_path))]
    messages = (Message(Role.USER, (TextPart("Hi <|im_end|> there"),)),)
    form = OutputFormat(OutputFormatKind.JSON_SCHEMA, '{"type": "integer"}', "response_format")
    prompts, grammars, vocabularies = [], [], []
    for processor in both:
        prompt = await ChatTemplates(pool).render(processor.template, Conversation(messages))
        prompts.append((await processor.tokenizer.tokenize_prompt(prompt)).tokens)
        vocabularies.append(processor.grammar_vocabulary())
        spec = OutputSpec(form, None, None)
        grammars.append(await GrammarCompiler(pool).compile(spec, vocabularies[-1]))
    formats = [(processor.turn_format, processor.thinking) for processor in both]
    for processor in both:
        processor.vocabulary.close()

    assert prompts[0] == prompts[1]
    assert 2041 in prompts[0]
    assert grammars[0] == grammars[1]
    assert vocabularies[0] == vocabularies[1]
    assert formats[0] == formats[1]


@pytest.mark.parametrize("required", [False, True])
async def test_grammars_for_engines_with_the_folders_tokenizer_allow_the_models_own_calls(
    pool: SandboxPool, tmp_path: Path, required: bool
) -> None:
    """llguidance there takes <tool_call>, an added token, for a control token, so that a grammar
    with its text forbids the token."""
    export_tokenizer(BUNDLED_PATH, tmp_path)
    engine = LLTokenizer((tmp_path / "tokenizer.json").read_text())
    features = Features("vllm", frozenset(), takes_grammars=True, brackets_are_control=True)
    family = FAMILIES[ToolCallFormat.HERMES]
    tool = CallableTool("f", '{"type": "object"}', strict=True, field="tools[0]")
    triggers = () if required else family.triggers
    calls = ToolCallSpec(family.syntaxes, (tool,), required, several=True, triggers=triggers)
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    accepted = []
    for source in (BUNDLED, str(tmp_path)):
        processor = await open_processor(pool, source)
        tokens = processor.vocabulary.tokenize(text, add_special=False, parse_special=True)
        for vocabulary in (processor.grammar_vocabulary(features), processor.grammar_vocabulary()):
            spec = OutputSpec(None, calls, None)
            compiled = await GrammarCompiler(pool).compile(spec, vocabulary)
            matcher = LLMatcher(engine, LLMatcher.grammar_from_lark(single_lark(compiled.text)))
            accepted.append(matcher.validate_tokens(tokens) == len(tokens))
        processor.vocabulary.close()

    assert accepted == [True, False, True, False]


async def test_a_folder_whose_tokenizer_is_invalid_is_a_problem_of_its_model(
    pool: SandboxPool, tmp_path: Path
) -> None:
    write_folder(tmp_path, b'{"model":' * 10**5)

    with pytest.raises(StartupError, match=r"its vocabulary cannot be used: tokenizer\.json: "):
        await open_processor(pool, str(tmp_path))
