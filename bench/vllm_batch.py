"""vLLM's own batch, with which one of Corral over vLLM is compared.

Run by the Python that has vLLM: `PYTHON bench/vllm_batch.py ENGINE MAX_TOKENS`, where ENGINE are
the arguments of `vllm.LLM` in JSON. It says {"ready": true} when the engine has started. Then each
line of the input is a list of texts in JSON, and it says how many seconds all of them took:
{"seconds": ...}.
"""

import json
import sys
import time

from vllm import LLM, SamplingParams  # type: ignore[import-not-found]  # in another environment


def main(engine: str, max_tokens: str) -> None:
    """Generate for the texts of each line at once."""
    llm = LLM(**json.loads(engine))
    params = SamplingParams(temperature=0.0, max_tokens=int(max_tokens), ignore_eos=True)
    llm.generate(["warm"], params, use_tqdm=False)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        texts = json.loads(line)
        started = time.perf_counter()
        outputs = llm.generate(texts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        assert all(len(each.outputs[0].token_ids) == int(max_tokens) for each in outputs)
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
