"""Counts the prompt tokens computed for many requests with one system prompt.

The figures do not depend on the speed of the machine. Tokens after the shared prefix are random;
the engine runs in this process.

    python -m bench.shared_prefix [--model FILE] [--requests 32] [--concurrency 16] [--shared 800]
"""

import argparse
import random
import time
from array import array
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.engine_parts import EngineOptions
from inference_svc.engine.events import Event, Finished, ModelLoad, Started
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.llama.warmup import warm_up
from inference_svc.models.sources import BUNDLED_PATH


class Load(NamedTuple):
    """Number of requests, concurrency, and lengths in tokens."""

    requests: int
    concurrency: int
    shared: int
    own: int
    output: int


def main() -> None:
    """Run without and with reuse, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=BUNDLED_PATH)
    for name, default in Load(32, 16, 800, 16, 32)._asdict().items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = vars(parser.parse_args())
    model = arguments.pop("model")
    load = Load(**arguments)
    least = load.shared + load.requests * load.own
    print(f"{load.requests} requests, {load.shared} shared + {load.own} own tokens each")
    print(f"least possible: {least:,} prompt tokens")
    for reuse in (False, True):
        computed, sources = _run(model, load, reuse=reuse)
        cached = ", ".join(f"{count} from {source}" for source, count in sources.items())
        print(
            f"reuse {reuse!s:5}: {computed:,} computed, {computed / least:.2f} of least; {cached}"
        )


def _run(model: Path, load: Load, *, reuse: bool) -> tuple[int, Counter[str]]:
    """Return the number of computed prompt tokens, and request counts by source of the prefix."""
    library.start()
    backend = LlamaBackend(
        BackendSettings(
            model,
            slots=load.concurrency,
            context_tokens=load.shared + load.own + load.output + 8,
            batch_tokens=2048,
            ubatch_tokens=256,
            threads=1,
            sampling_threads=1,
        )
    )
    measured = warm_up(backend, cores=1, threads=1, budget_s=1.0)
    options = EngineOptions(
        chunk_cap=512,
        saved_bytes=256 << 20,
        copy_costs=measured.copy_costs,
        step_times=measured.step_times,
    )
    layout = BatchLayout(measured.step_times, load.concurrency)
    engine = Engine("bench", backend, options, layout=layout, clock=time.monotonic)
    requests = [
        _request(i, load, backend.limits.vocabulary_size, reuse=reuse) for i in range(load.requests)
    ]
    events = _closed_loop(engine, requests, load.concurrency)
    backend.close()
    loads = [event for event in events if isinstance(event, ModelLoad)]
    started = [event for event in events if isinstance(event, Started)]
    return loads[-1].prompt_tokens, Counter(event.source.value for event in started)


def _closed_loop(engine: Engine, requests: list[SequenceRequest], concurrency: int) -> list[Event]:
    """Keep `concurrency` requests running until all are finished; return all events."""
    events: list[Event] = []
    queue = iter(requests)
    for _, request in zip(range(concurrency), queue, strict=False):
        engine.submit(request)
    while engine.has_work:
        step = engine.step()
        for event in step:
            if isinstance(event, Finished) and (next_request := next(queue, None)) is not None:
                engine.submit(next_request)
        events += step
        engine.check_integrity()
    return events


def _request(i: int, load: Load, vocabulary: int, *, reuse: bool) -> SequenceRequest:
    shared = random.Random(0).choices(range(10, vocabulary), k=load.shared)
    own = random.Random(i + 1).choices(range(10, vocabulary), k=load.own)
    return SequenceRequest(
        sequence_id=i,
        model="bench",
        prompt=array("i", shared + own),
        sampling=Sampling(temperature=0.0),
        seed=1,
        choice=0,
        max_tokens=load.output,
        cache_key=b"bench",
        resumed=array("i"),
        ignore_eos=True,
        reuse=reuse,
    )


if __name__ == "__main__":
    main()
