"""Explains what the service will do with a model, without loading its weights."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from inference_svc.chat.conversation import (
    Conversation,
    Message,
    Role,
    TemplateOptions,
    TextPart,
    ToolSpec,
)
from inference_svc.chat.parsers.formats import ToolCallFormat, matching_formats
from inference_svc.chat.reasoning_support import ThinkingMode
from inference_svc.chat.templates import ChatTemplates, ModelTemplate
from inference_svc.config import InferenceSettings
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine_client.features import NEUTRAL, NEUTRAL_SAMPLING
from inference_svc.model_pool.catalog import ModelEntry, ModelProcessor, TextProcessor
from inference_svc.model_pool.discovery import find_models
from inference_svc.model_pool.lifecycle import MemoryBudget, plan_start
from inference_svc.model_pool.loader import ModelLoader
from inference_svc.model_pool.pool import ModelPool, read_memory
from inference_svc.models.memory_plan import planned_bytes
from inference_svc.models.metadata import FileRole, ModelClass, ModelFile, file_role
from inference_svc.models.sources import is_projector
from inference_svc.rpc.output_constraints import enforced_tool_call_format
from inference_svc.sandbox_jobs import PRELOADED
from inference_svc.upstream_settings import UpstreamSettings
from model_files.gguf import ModelFileInvalid, read_header
from model_files.sandbox_jobs import CHECK_ADAPTER
from svc_kit.errors import DomainError, ModelTooLarge
from svc_kit.lifecycle import StartupError
from svc_kit.metrics import EngineMetrics
from svc_kit.sandbox.jobs import JobFailed
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings

Section = dict[str, Any]
_MAX_FILES_BESIDE: Final = 64
_CONNECT_S: Final = 30.0
_TOOL: Final = ToolSpec("probetool", "A probe.", json.dumps({"type": "object", "properties": {}}))


async def explain_source(
    source: str, settings: InferenceSettings, *, verify: bool = False
) -> AsyncIterator[Section]:
    """Explain each model of a source, as the service with these settings would serve it alone; or
    the upstream of this name, which is connected and probed.

    `verify`: compare prompts with llama.cpp's. Raises StartupError, as the service's start does.
    """
    upstreams = {name: each for name, each in settings.upstreams.items() if name == source}
    models = [] if upstreams else [source]
    own_names = {"per_model": {}, "turn_formats": {}, "models": models, "upstreams": upstreams}
    alone = settings.model_copy(update=own_names)
    names = {entry.name for entry in find_models(alone)}
    own = {
        group: {name: each for name, each in getattr(settings, group).items() if name in names}
        for group in ("per_model", "turn_formats")
    }
    alone = alone.model_copy(update=own)
    catalog = find_models(alone)
    async with SandboxPool(SandboxSettings(preload=PRELOADED[:1])) as sandbox:
        templates = ChatTemplates(sandbox)
        metrics = EngineMetrics(CollectorRegistry())
        loader = ModelLoader(
            alone, num_models=1, sandbox=sandbox, templates=templates, metrics=metrics
        )
        memory = await read_memory(alone.pool, catalog)
        for entry in catalog:
            if not entry.tokenizer_from_engine:
                entry.processor = await loader.open_processor(entry)
            try:
                async with _connected(entry, loader):
                    processor = entry.processor
                    if processor is None:
                        raise StartupError(f"upstreams.{entry.name}: {entry.resident.problem}")
                    if isinstance(processor, TextProcessor):
                        yield _explain_text_mode(entry, processor)
                        continue
                    explainer = Explainer(entry, processor, templates, sandbox)
                    yield await explainer.explain(memory, verify)
            finally:
                if entry.processor is not None:
                    entry.processor.close()


@asynccontextmanager
async def _connected(entry: ModelEntry, loader: ModelLoader) -> AsyncIterator[None]:
    """Connect to the upstream of a model, if it has one and that is there."""
    if entry.upstream is None:
        yield
        return
    entry.engine = loader.create_upstream(entry, lambda: None)
    try:
        async with asyncio.timeout(_CONNECT_S):
            await entry.engine.start()
    except StartupError as error:
        entry.resident.problem = str(error)
    except TimeoutError:
        entry.resident.problem = f"it did not answer within {_CONNECT_S:g} s"
    try:
        yield
    finally:
        await entry.engine.close()


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains one model. The vocabulary of `processor` must be open."""

    entry: ModelEntry
    processor: ModelProcessor
    templates: ChatTemplates
    sandbox: SandboxPool

    async def explain(self, memory: MemoryBudget, verify: bool = False) -> Section:
        """The sections of the explanation; "unsure" has what should be checked."""
        file, unsure = self.entry.file, list[str]()
        upstream = self.entry.upstream
        explained: Section = {"model": _describe(file)}
        if upstream is None:
            explained["memory"] = self._memory(memory)
        else:
            explained["upstream"] = _describe_upstream(self.entry, upstream)
        explained["vocabulary"] = self._vocabulary(unsure)
        if not file.num_parameters and upstream is None:
            unsure.append("the file has no weights: it can be explained, but not loaded")
        if file.generates:
            explained["sampling"] = _changes(self.processor.default_sampling, Sampling())
        if file.model_class is ModelClass.DECODER:
            explained["template"] = await self._template(unsure)
            if verify and not file.path.is_dir():
                explained["verification"] = await self._verify()
        if upstream is None:
            explained["beside"] = await self._beside(unsure)
        explained["unsure"] = unsure
        return explained

    def _memory(self, memory: MemoryBudget) -> Section:
        """What the planner of the service decides if the model is loaded with what is free; the
        limits and the measured memory of a loaded one."""
        ready = self.entry.engine.ready if self.entry.engine is not None else None
        if ready is not None:
            return {
                "fits": True,
                "slots": ready.slots,
                "context_tokens": ready.slot_tokens,
                "kv_bytes": ready.num_cells * self.entry.file.kv_bytes_per_token,
                "total_bytes": self.entry.memory.total,
                "reason": "it is loaded",
            }
        try:
            (limits,) = plan_start([self.entry], memory)
        except ModelTooLarge as error:
            return {"fits": False, "reason": error.message}
        return {
            "fits": True,
            "slots": limits.slots,
            "context_tokens": limits.context_tokens,
            "kv_bytes": limits.kv_bytes,
            "total_bytes": planned_bytes(self.entry.file, limits),
            "reason": limits.reason,
        }

    def _vocabulary(self, unsure: list[str]) -> Section:
        path, vocabulary = self.entry.file.path, self.processor.vocabulary
        kind: str | None = "huggingface"
        pre: str | None = "tokenizer.json"
        if not path.is_dir():
            header = read_header(path)
            kind, pre = header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre")
        if kind == "gpt2" and pre in (None, "", "default"):
            unsure.append("the file names no pre-tokenizer: texts may be split differently")
        ends = {vocabulary.token_text(token): token for token in sorted(vocabulary.end_tokens)}
        if self.entry.file.generates and not ends:
            unsure.append("no token ends a turn: answers end at max_tokens or a stop text")
        return {
            "tokens": vocabulary.size,
            "tokenizer": kind,
            "pre_tokenizer": pre,
            "begin_token": vocabulary.token_text(vocabulary.bos),
            "adds_begin_token": vocabulary.adds_bos,
            "end_tokens": ends,
            "control_tokens": len(vocabulary.control_tokens),
            "infills": vocabulary.infill_tokens is not None,
        }

    async def _template(self, unsure: list[str]) -> Section:
        template, turn_format = self.processor.template, self.processor.turn_format
        thinking = self.processor.thinking
        calls = turn_format.tool_calls
        matching = matching_formats(template.source) if template.origin != "fallback" else {}
        probes = await self._probes(unsure)
        unsure += _doubts(template, matching, calls, probes)
        trigger = next(iter(turn_format.family.triggers), "")
        return {
            "source": template.origin,
            "tool_calls": calls.value,
            "recognized_by": list(matching.get(calls, ())),
            "trigger": trigger,
            "required_calls": enforced_tool_call_format(calls, beside_form=False).value,
            "reasoning": turn_format.reasoning.value,
            "thinking": thinking.mode.value,
            "efforts": [effort.value for effort in thinking.efforts],
            "stop_texts": list(turn_format.stop_texts),
            "probes": probes,
        }

    async def _probes(self, unsure: list[str]) -> dict[str, bool]:
        """What the template supports. What it does not is given to the model in another way."""
        template = self.processor.template
        try:
            found = await self.templates.probe(template)
        except DomainError as error:
            unsure.append(f"the template fails: {error.message}")
            return {}
        rendered = {
            name: await self._shows(conversation, texts)
            for name, (conversation, texts) in _PROBES.items()
        }
        return {
            "system role": found.system_role,
            "tools": found.tools,
            "tool calls": found.tool_calls,
            "tool results": found.tool_results,
            "parallel calls": not found.single_calls,
            "thinking": self.processor.thinking.mode is not ThinkingMode.NONE,
            **rendered,
        }

    async def _shows(self, conversation: Conversation, texts: Sequence[str]) -> bool:
        try:
            prompt = await self.templates.render(self.processor.template, conversation)
        except DomainError:
            return False
        return all(text in prompt.text for text in texts)

    async def _verify(self) -> dict[str, Section]:
        """Compare the prompts of conversations with those of llama.cpp's own list of templates."""
        template, vocabulary = self.processor.template, self.processor.vocabulary
        results: dict[str, Section] = {}
        for name, turns in _CONVERSATIONS.items():
            messages = tuple(_message(Role(role), text) for role, text in turns)
            try:
                prompt = await self.templates.render(template, Conversation(messages))
            except DomainError as error:
                results[name] = {"result": "failed", "problem": error.message}
                continue
            text = prompt.text.removeprefix(template.bos_text)
            reference = vocabulary.render_chat(template.source, turns)
            if reference is None:
                results[name] = {"result": "unknown to llama.cpp"}
            elif reference.removeprefix(template.bos_text) == text:
                results[name] = {"result": "equal"}
            else:
                results[name] = {"result": "different", "corral": text, "llama_cpp": reference}
        return results

    async def _beside(self, unsure: list[str]) -> Section:
        """Files in the folder of the model that fit."""
        file = self.entry.file
        paths = sorted(file.path.parent.glob("*.gguf"))
        others = [path for path in paths if path not in file.paths]
        projectors = [path.name for path in others if is_projector(path.name)]
        used = file.projector
        if used is None and len(projectors) > 1:
            unsure.append(f"{len(projectors)} projectors are beside it: name one in per_model")
        adapters = [path.name for path in others[:_MAX_FILES_BESIDE] if await self._fits(path)]
        return {
            "projector": used and used.path.name,
            "draft_model": file.draft and file.draft.path.name,
            "adapters": adapters,
        }

    async def _fits(self, path: Path) -> bool:
        payload = {"adapter": str(path), "model": [str(each) for each in self.entry.file.paths]}
        try:
            if file_role(path) is not FileRole.ADAPTER:
                return False
            return "mismatch" not in await self.sandbox.run(CHECK_ADAPTER, payload)
        except (ModelFileInvalid, JobFailed):
            return False


class Explanations:
    """Explains the models of a pool."""

    def __init__(self, pool: ModelPool, templates: ChatTemplates, sandbox: SandboxPool) -> None:
        self._pool = pool
        self._templates = templates
        self._sandbox = sandbox

    async def explain(self, entry: ModelEntry, *, verify: bool) -> Section:
        """Explain a model. Raises `ModelLoading` or `ModelLoadFailed`."""
        processor = await self._pool.processor(entry)
        if isinstance(processor, TextProcessor):
            return _explain_text_mode(entry, processor)
        await self._pool.memory.refresh()
        explainer = Explainer(entry, processor, self._templates, self._sandbox)
        return await explainer.explain(self._pool.memory, verify)


def _explain_text_mode(entry: ModelEntry, processor: TextProcessor) -> Section:
    """The sections about a model of which only the engine knows vocabulary and template."""
    explained: Section = {"model": _describe(entry.file)}
    if entry.upstream is not None:
        explained["upstream"] = _describe_upstream(entry, entry.upstream)
    explained["sampling"] = _changes(processor.default_sampling, NEUTRAL_SAMPLING)
    explained["unsure"] = [
        "text mode: of what the engine honours, only log probabilities are probed"
    ]
    return explained


def _changes(sampling: Sampling, usual: Sampling) -> Section:
    values = asdict(sampling).items()
    return {name: value for name, value in values if value != getattr(usual, name)}


def _describe_upstream(entry: ModelEntry, settings: UpstreamSettings) -> Section:
    """The engine that serves it, and what it honours."""
    connection, engine = entry.connection, entry.engine
    states = {url: "not connected" for url in settings.urls}
    if connection is not None:
        states = {
            each.url: each.state.value + (f": {each.problem}" if each.problem else "")
            for each in connection.status.endpoints
        }
    ready = engine.ready if engine is not None else None
    if ready is None or (features := ready.features) is None:
        return {"urls": states, "problem": entry.resident.problem or "not connected"}
    return {
        "engine": features.engine,
        "model": settings.model,
        "tokenizer": entry.tokenizer,
        "adapters": {each.name: each.state.value for each in entry.adapters.current()},
        "text_mode": settings.is_text_mode,
        "urls": states,
        "concurrency": ready.slots,
        "context_tokens": ready.slot_tokens or None,
        "sampling": sorted(features.sampling),
        "ignores": sorted(NEUTRAL.keys() - features.sampling),
        "constraints": sorted(features.constraints),
        "grammars": features.takes_grammars,
        "for_grammars": "" if features.takes_grammars else features.grammar_flag,
        "logprobs": features.max_logprobs,
        "generates": features.generates,
        "vector_size": features.vector_size,
        "separates_projects": features.separates_projects,
    }


def _describe(file: ModelFile) -> Section:
    return {
        "name": file.name,
        "title": file.title,
        "path": str(file.path) if file.paths else None,
        "files": len(file.paths),
        "architecture": file.architecture,
        "class": file.model_class.value,
        "pooling": file.pooling and file.pooling.value,
        "parameters": file.num_parameters,
        "size_bytes": file.size_bytes,
        "layers": file.num_layers,
        "embedding_size": file.embedding_size,
        "trained_context_tokens": file.trained_context_tokens,
        "kv_bytes_per_token": file.kv_bytes_per_token,
        "quantization": file.quantization,
        "tensor_types": {name: round(share, 4) for name, share in file.tensor_types.items()},
    }


def _doubts(
    template: ModelTemplate,
    matching: Mapping[ToolCallFormat, tuple[str, ...]],
    calls: ToolCallFormat,
    probes: Mapping[str, bool],
) -> Iterator[str]:
    if template.origin == "fallback":
        yield "the file has no chat template: ChatML with Hermes tool calls is assumed"
    if len(matching) > 1:
        yield f"the template mentions the tool calls of {', '.join(matching)}: {calls} is assumed"
    if calls is ToolCallFormat.JSON and calls not in matching:
        yield "its format of tool calls is not known: JSON that names a tool is read as a call"
    if probes and not probes["tools"] and template.origin != "fallback":
        yield "the template ignores tools: they are described to the model in Hermes' format"
    if probes and not probes["system role"]:
        yield "the template drops system messages: they are put before the first user message"


def _message(role: Role, text: str, **more: Any) -> Message:
    return Message(role, (TextPart(text),), **more)


_QUESTION: Final = _message(Role.USER, "probeuser")
_PROBES: Final[Mapping[str, tuple[Conversation, tuple[str, ...]]]] = {
    "continue": (
        Conversation(
            (_QUESTION, _message(Role.ASSISTANT, "probebegin")),
            options=TemplateOptions(continue_final_message=True),
        ),
        ("probebegin",),
    ),
}
_USER: Final = ("user", "What is the capital of France?")
_CONVERSATIONS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "question": (_USER,),
    "with a system message": (("system", "Be brief."), _USER),
    "several turns": (_USER, ("assistant", "Paris."), ("user", "And of Italy?")),
}
"""What llama.cpp can render without Jinja: roles and texts."""
