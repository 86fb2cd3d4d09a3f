"""Engines on llama.cpp for service tests, on the demo model by default."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.engine_parts import EngineOptions
from inference_svc.engine.events import Delta, Event, Finished
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.spec_decode.draft_model import DraftModel
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.llama.warmup import try_token_vectors
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.structured_output.compiler import GrammarCompiler, GrammarVocabulary
from inference_svc.structured_output.spec import OutputFormat, OutputFormatKind, OutputSpec
from tests.support.sandbox_jobs import InlineJobs
from tests.support.sequences import make_request

EventT = TypeVar("EventT")


def make_settings(path: Path = BUNDLED_PATH, **changes: Any) -> BackendSettings:
    """Settings with four slots of 512 tokens and one thread."""
    fields: dict[str, Any] = {
        "slots": 4,
        "context_tokens": 512,
        "batch_tokens": 512,
        "ubatch_tokens": 256,
        "threads": 1,
        "sampling_threads": 1,
        **changes,
    }
    return BackendSettings(path, **fields)


@contextmanager
def open_backend(
    path: Path = BUNDLED_PATH,
    make: Callable[[BackendSettings], LlamaBackend] = LlamaBackend,
    *,
    mixes: bool = False,
    **changes: Any,
) -> Iterator[LlamaBackend]:
    """Load a model; `changes` are fields of its settings. With `mixes` it computes texts with the
    pictures beside them, if it can."""
    library.start()
    backend = make(make_settings(path, **changes))
    try:
        if mixes:
            try_token_vectors(backend, path)
        yield backend
    finally:
        backend.close()


@contextmanager
def open_draft_model(path: Path, **changes: Any) -> Iterator[DraftModel]:
    """Load a draft model; `changes` are fields of its settings."""
    with open_backend(path, **changes) as backend:
        yield DraftModel(backend, {}, time.monotonic, backend.limits.vocabulary_size)


def clear_slots(backend: LlamaBackend) -> None:
    """Remove all tokens from all slots."""
    for slot in range(backend.limits.slots):
        backend.trim(slot, 0)


def make_engine(
    backend: LlamaBackend,
    *,
    layout: BatchLayout | None = None,
    chunk_cap: int = 64,
    clock: Callable[[], float] = time.monotonic,
    draft_model: DraftModel | None = None,
    **options: Any,
) -> Engine:
    """An engine on empty slots. `options` are other fields of `EngineOptions`."""
    clear_slots(backend)
    layout = layout or BatchLayout({}, backend.limits.slots)
    return Engine(
        "demo",
        backend,
        EngineOptions(chunk_cap, **options),
        layout=layout,
        clock=clock,
        draft_model=draft_model,
    )


def text_request(
    backend: LlamaBackend, sequence_id: int, text: str, **changes: Any
) -> SequenceRequest:
    """A request with a text as its prompt; control tokens are parsed."""
    tokens = backend.vocabulary.tokenize(text, add_special=False, parse_special=True)
    return make_request(sequence_id, tokens, **changes)


def compile_spec(backend: LlamaBackend, spec: OutputSpec) -> Constraint:
    """Compile an output specification for the backend's vocabulary."""
    vocabulary = backend.vocabulary
    grammar_vocabulary = GrammarVocabulary(
        vocabulary.size, vocabulary.control_tokens, tuple(sorted(vocabulary.end_tokens))
    )
    compiled = asyncio.run(GrammarCompiler(InlineJobs()).compile(spec, grammar_vocabulary))
    return Constraint(compiled.text, "constraint")


def compile_format(backend: LlamaBackend, kind: OutputFormatKind, text: str) -> Constraint:
    """Compile an output format without tools or reasoning."""
    return compile_spec(backend, OutputSpec(OutputFormat(kind, text, "constraint"), None, None))


def run_engine(engine: Engine, *requests: SequenceRequest, steps: int = 10**6) -> list[Event]:
    """Submit requests and step until there is no work left; checks the engine after each step."""
    for request in requests:
        engine.submit(request)
    events: list[Event] = []
    while engine.has_work and steps:
        events += engine.step()
        engine.check_integrity()
        steps -= 1
    return events


def select_events(events: list[Event], kind: type[EventT]) -> list[EventT]:
    return [event for event in events if isinstance(event, kind)]


def deltas(events: list[Event], sequence_id: int = 0) -> list[Delta]:
    return [delta for delta in select_events(events, Delta) if delta.sequence_id == sequence_id]


def finished_event(events: list[Event], sequence_id: int = 0) -> Finished:
    (event,) = [e for e in select_events(events, Finished) if e.sequence_id == sequence_id]
    return event


def output_text(events: list[Event], sequence_id: int = 0) -> str:
    return "".join(delta.text for delta in deltas(events, sequence_id))


def output_tokens(events: list[Event], sequence_id: int = 0) -> list[int]:
    return [token for delta in deltas(events, sequence_id) for token in delta.tokens]
