"""Adapters on llama.cpp and the demo model: what a context computes with which stack."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from inference_svc.engine.backend import AdapterLoadError
from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Delta
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, AppliedAdapter
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.models.sources import BUNDLED_FOLDER, BUNDLED_PATH
from tests.support.sequences import ManualClock, a_request

SLOTS = 4
FILES = {voice: BUNDLED_FOLDER / f"demo-lora-{voice}-f16.gguf" for voice in ("pirate", "robot")}
PIRATE = (AppliedAdapter("pirate", 1.0),)
ROBOT = (AppliedAdapter("robot", 1.0),)
STACKS: Sequence[AdapterStack] = (NO_ADAPTERS, PIRATE, ROBOT, (*PIRATE, *ROBOT))
QUESTION = "<|im_start|>user\nWhat is the capital of {}?<|im_end|>\n<|im_start|>assistant\n"
FOREIGN = Path(__file__).parents[3] / "data" / "foreign-lora-f16.gguf"


@pytest.fixture
def backend() -> Iterator[LlamaBackend]:
    """The demo model with four slots and both adapters."""
    library.start()
    settings = BackendSettings(
        BUNDLED_PATH,
        slots=SLOTS,
        context_tokens=512,
        batch_tokens=256,
        ubatch_tokens=256,
        threads=1,
        sampling_threads=1,
    )
    backend = LlamaBackend(settings)
    yield backend
    backend.close()


def logits(backend: LlamaBackend, stack: AdapterStack) -> npt.NDArray[np.float32]:
    """What the model says after a question, computed from nothing with a stack."""
    tokens = backend.vocabulary.tokenize(
        QUESTION.format("France"), add_special=False, parse_special=True
    )
    backend.use_adapters(stack)
    backend.decode(TokenBatch.of([Row(0, 0, tokens, output=True)]))
    row = np.array(backend._row(0))
    backend.trim(0, 0)
    return row


def test_a_stack_is_applied_and_taken_off_again(backend: LlamaBackend) -> None:
    """Scales count, order does not, and the base is the same to the bit before and after."""
    before = logits(backend, NO_ADAPTERS)
    for voice, path in FILES.items():
        backend.load_adapter(voice, path)
    different = [
        logits(backend, stack) for stack in (*STACKS[1:], (AppliedAdapter("pirate", 0.5),))
    ]
    again = logits(backend, PIRATE)
    after = logits(backend, NO_ADAPTERS)

    assert (before == after).all()
    assert (different[0] == again).all()
    rows = [before, *different]
    pairs = [(one, other) for i, one in enumerate(rows) for other in rows[:i]]
    assert all(np.abs(one - other).max() > 0.1 for one, other in pairs)


def test_an_adapter_that_the_context_has_can_be_freed(backend: LlamaBackend) -> None:
    """The next decode is the base's, and the file can be loaded again."""
    base = logits(backend, NO_ADAPTERS)
    backend.load_adapter("pirate", FILES["pirate"])
    pirate = logits(backend, PIRATE)
    backend.unload_adapter("pirate")
    freed = logits(backend, NO_ADAPTERS)
    backend.load_adapter("pirate", FILES["pirate"])

    assert (freed == base).all()
    assert (logits(backend, PIRATE) == pirate).all()


def test_what_llama_cpp_refuses_is_an_error(backend: LlamaBackend, tmp_path: Path) -> None:
    """Its answer is a pointer to nothing, which must not reach a context."""
    for path in (FOREIGN, tmp_path / "missing", BUNDLED_PATH):
        with pytest.raises(AdapterLoadError):
            backend.load_adapter("x", path)


def an_engine(backend: LlamaBackend) -> Engine:
    """An engine whose stacks take turns at every step, with room for prefixes in memory."""
    clock = ManualClock()
    layout = BatchLayout({}, SLOTS)
    engine = Engine(
        "m",
        backend,
        layout=layout,
        chunk_cap=64,
        clock=clock,
        adapter_wait_s=0.0,
        saved_bytes=1 << 24,
    )
    for voice, path in FILES.items():
        engine.adapters.load(voice, path)
    return engine


def ask(engine: Engine, backend: LlamaBackend, stacks: Sequence[AdapterStack]) -> list[str]:
    """The answers to a question, asked with all stacks at once, in the three classes."""
    tokens = backend.vocabulary.tokenize(
        QUESTION.format("Italy"), add_special=False, parse_special=True
    )
    for number, stack in enumerate(stacks):
        key = repr(stack).encode()
        request = a_request(number, tokens, adapters=stack, cache_key=key, max_tokens=40)
        engine.submit(replace(request, priority=1 + number % 3))
    texts = [""] * len(stacks)
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Delta):
                texts[event.sequence_id] += event.text
        engine.check_integrity()
    return texts


def test_stacks_side_by_side_say_what_each_says_alone(backend: LlamaBackend) -> None:
    """More sequences than slots: some begin with what others of their stack have computed, brought
    by copies that a decode of another stack carries out."""
    engine = an_engine(backend)
    alone = [text for stack in STACKS for text in ask(engine, backend, [stack])]
    engine.flush(0)
    together = ask(engine, backend, list(STACKS) * 3)

    assert together == alone * 3
    assert len(set(alone)) == len(STACKS)
