"""vLLM's own batch, with which one of Corral over vLLM is compared.

Run by the Python that has vLLM: `PYTHON bench/vllm_batch.py ENGINE MAX_TOKENS`, where ENGINE are
the arguments of `vllm.LLM` in JSON. It says {"ready": true} when the engine has started. Then each
line of the input is a list of texts in JSON, and it says how many seconds all of them took, and how
many of processors: {"seconds": ..., "cpu_s": ...}.
"""

import json
import sys
import time

import psutil  # type: ignore[import-untyped,unused-ignore]  # vLLM requires it
from vllm import LLM, SamplingParams  # type: ignore[import-not-found]  # in another environment


def main(engine: str, max_tokens: str) -> None:
    """Generate for the texts of each line at once."""
    llm = LLM(**json.loads(engine))
    params = SamplingParams(temperature=0.0, max_tokens=int(max_tokens), ignore_eos=True)
    llm.generate(["warm"], params, use_tqdm=False)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        texts = json.loads(line)
        cpu_s, started = processor_seconds(), time.perf_counter()
        outputs = llm.generate(texts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        assert all(len(each.outputs[0].token_ids) == int(max_tokens) for each in outputs)
        took = {"seconds": seconds, "cpu_s": round(processor_seconds() - cpu_s, 2)}
        print(json.dumps(took), flush=True)


def processor_seconds() -> float:
    """Return those of this process and of its engine's so far."""
    own = psutil.Process()
    each = (process.cpu_times() for process in (own, *own.children(recursive=True)))
    return float(sum(times.user + times.system for times in each))


if __name__ == "__main__":
    main(*sys.argv[1:])
