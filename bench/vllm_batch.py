"""vLLM's own batch, with which one of Corral over vLLM is compared.

Run by the Python that has vLLM: `PYTHON bench/vllm_batch.py ENGINE PROMPTS MAX_TOKENS`, where
ENGINE are the arguments of `vllm.LLM` and PROMPTS is a file with a list of texts, both JSON. It
prints how many seconds all of them took, without the start, as a line {"seconds": ...}.
"""

import json
import sys
import time
from pathlib import Path

from vllm import LLM, SamplingParams  # type: ignore[import-not-found]  # in another environment


def main(engine: str, prompts: str, max_tokens: str) -> None:
    """Generate for all prompts at once."""
    llm = LLM(**json.loads(engine))
    params = SamplingParams(temperature=0.0, max_tokens=int(max_tokens), ignore_eos=True)
    texts = json.loads(Path(prompts).read_text())
    llm.generate(texts[:1], params, use_tqdm=False)
    started = time.perf_counter()
    outputs = llm.generate(texts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    assert all(len(each.outputs[0].token_ids) == int(max_tokens) for each in outputs)
    print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
