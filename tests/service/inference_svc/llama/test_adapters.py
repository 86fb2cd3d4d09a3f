"""LoRA adapters on llama.cpp and the demo model."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from inference_svc.engine.backend import AdapterLoadError
from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Failed
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, AppliedAdapter, adapter_stack
from inference_svc.engine.sampling_params import Sampling
from inference_svc.llama.backend import LlamaBackend
from inference_svc.models.sources import BUNDLED_FOLDER, BUNDLED_PATH
from model_files.gguf import read_header
from svc_kit.errors import InvalidField
from tests.support.llama_engines import (
    make_engine,
    open_backend,
    output_text,
    run_engine,
    text_request,
)
from tests.support.sequences import ManualClock

FILES = {voice: BUNDLED_FOLDER / f"demo-lora-{voice}-f16.gguf" for voice in ("pirate", "robot")}
PIRATE = (AppliedAdapter("pirate", 1.0),)
ROBOT = (AppliedAdapter("robot", 1.0),)
STACKS: Sequence[AdapterStack] = (NO_ADAPTERS, PIRATE, ROBOT, (*PIRATE, *ROBOT))
QUESTION = "<|im_start|>user\nWhat is the capital of {}?<|im_end|>\n<|im_start|>assistant\n"
FOREIGN = Path(__file__).parents[3] / "data" / "foreign-lora-f16.gguf"


@pytest.fixture
def backend() -> Iterator[LlamaBackend]:
    """The demo model with four slots and both adapters."""
    with open_backend() as backend:
        yield backend


def logits(backend: LlamaBackend, stack: AdapterStack) -> npt.NDArray[np.float32]:
    """The logits after a question, computed with a stack on an empty slot."""
    tokens = backend.vocabulary.tokenize(
        QUESTION.format("France"), add_special=False, parse_special=True
    )
    backend.use_adapters(stack)
    backend.decode(TokenBatch.of([Row(0, 0, tokens, output=True)]))
    row = np.array(backend.logits(0))
    backend.trim(0, 0)
    return row


def test_a_stack_is_applied_and_removed(backend: LlamaBackend) -> None:
    """Adapters and scales change the logits; without a stack they are bit-identical to before."""
    before = logits(backend, NO_ADAPTERS)
    for voice, path in FILES.items():
        backend.load_adapter(voice, path)
    adapted = [logits(backend, stack) for stack in (*STACKS[1:], (AppliedAdapter("pirate", 0.5),))]
    again = logits(backend, PIRATE)
    after = logits(backend, NO_ADAPTERS)

    assert (before == after).all()
    assert (adapted[0] == again).all()
    rows = [before, *adapted]
    pairs = [(one, other) for i, one in enumerate(rows) for other in rows[:i]]
    assert all(np.abs(one - other).max() > 0.1 for one, other in pairs)


def test_an_applied_adapter_can_be_unloaded(backend: LlamaBackend) -> None:
    """The next decode uses the base model, and the file can be loaded again."""
    base = logits(backend, NO_ADAPTERS)
    backend.load_adapter("pirate", FILES["pirate"])
    pirate = logits(backend, PIRATE)
    backend.unload_adapter("pirate")
    freed = logits(backend, NO_ADAPTERS)
    backend.load_adapter("pirate", FILES["pirate"])

    assert (freed == base).all()
    assert (logits(backend, PIRATE) == pirate).all()


def test_an_adapter_that_llama_cpp_refuses_is_an_error(
    backend: LlamaBackend, tmp_path: Path
) -> None:
    """llama.cpp returns a null pointer, which must not be applied."""
    for path in (FOREIGN, tmp_path / "missing", BUNDLED_PATH):
        with pytest.raises(AdapterLoadError):
            backend.load_adapter("x", path)


def make_adapter_engine(backend: LlamaBackend) -> Engine:
    """An engine that switches stacks at every step, with memory for prefixes."""
    engine = make_engine(backend, clock=ManualClock(), adapter_wait_s=0.0, saved_bytes=1 << 24)
    for voice, path in FILES.items():
        engine.adapters.load(voice, path)
    return engine


def answers(engine: Engine, backend: LlamaBackend, stacks: Sequence[AdapterStack]) -> list[str]:
    """The outputs for a question asked with all stacks at once, with all priorities."""
    requests = [
        text_request(
            *(backend, number, QUESTION.format("Italy")),
            adapters=stack,
            cache_key=repr(stack).encode(),
            max_tokens=40,
            priority=1 + number % 3,
        )
        for number, stack in enumerate(stacks)
    ]
    events = run_engine(engine, *requests)
    return [output_text(events, number) for number in range(len(stacks))]


def test_stacks_do_not_affect_each_other(backend: LlamaBackend) -> None:
    """With more sequences than slots, so that prefixes are copied between sequences of a stack
    while another stack is applied."""
    engine = make_adapter_engine(backend)
    alone = [text for stack in STACKS for text in answers(engine, backend, [stack])]
    engine.flush(0)
    together = answers(engine, backend, list(STACKS) * 3)

    assert together == alone * 3
    assert len(set(alone)) == len(STACKS)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling()])
def test_an_adapter_that_overflows_in_the_model_is_the_callers_error(
    backend: LlamaBackend, tmp_path: Path, sampling: Sampling
) -> None:
    """Although each of its values is finite: no token is sampled by chance from logits that are
    not. Requests without it are not affected."""
    raw = bytearray(FILES["pirate"].read_bytes())
    header = read_header(FILES["pirate"], keep_tensors=True)
    for tensor in header.tensors:
        start = header.data_start + tensor.offset
        length = 2 * math.prod(tensor.shape)
        if tensor.name.endswith(".lora_b"):
            raw[start : start + length] = np.float16(4000).tobytes() * (length // 2)
    path = tmp_path / "large.gguf"
    path.write_bytes(raw)
    engine = make_adapter_engine(backend)
    engine.adapters.load("large", path)
    stack = adapter_stack([AppliedAdapter("large", 1.0)])
    events = run_engine(
        engine,
        text_request(backend, 0, "Hi", adapters=stack, sampling=sampling, max_tokens=4),
        text_request(backend, 1, "Hi", sampling=sampling, max_tokens=4),
    )
    failures = {event.sequence_id: event.error for event in events if isinstance(event, Failed)}

    assert {number: type(error) for number, error in failures.items()} == {0: InvalidField}
