"""Compare a GGUF file in llama.cpp with the checkpoint that it was exported from.

`python -m tools.demo_model.compare LOGITS.npz MODEL.gguf`, with the Python of `.venv`. The logits
come from `tools.demo_model.stages logits`, which runs in `.venv-demo-model`. The comparison detects
export errors, such as a wrong RoPE order or swapped matrices, which otherwise look like a badly
trained model, and texts that the two tokenizers split differently.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np


def main() -> int:
    """Print the largest difference and how often both predict the same next token.

    Returns 1 if that is too rare, or if a text is tokenized differently.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logits", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--at-least", type=float, default=0.9, help="minimum share of equal next tokens"
    )
    options = parser.parse_args()
    llama = llama_cpp.Llama(
        model_path=str(options.model),
        n_ctx=2048,
        logits_all=True,
        verbose=False,
    )
    worst = 1.0
    with np.load(options.logits) as saved:
        different = count_different_texts(llama, json.loads(str(saved["probes"])))
        for name in (name for name in saved.files if name.startswith("tokens")):
            expected = saved[name.replace("tokens", "logits")]
            llama.n_tokens = 0  # start a new sequence
            llama.eval(saved[name].tolist())
            actual = np.asarray(llama.scores[: len(expected)])
            difference = np.abs(actual - expected).max()
            same = float((actual.argmax(-1) == expected.argmax(-1)).mean())
            worst = min(worst, same)
            print(
                f"{len(expected)} tokens: largest difference {difference:.4f}, "
                f"same next token {same:.1%}"
            )
    return 0 if worst >= options.at_least and not different else 1


def count_different_texts(llama: llama_cpp.Llama, probes: dict[str, list[Any]]) -> int:
    """Compare token ids with llama.cpp's. Returns the number of texts that differ."""
    different = 0
    for text, ids in zip(probes["texts"], probes["ids"], strict=True):
        if llama.tokenize(text.encode(), add_bos=False, special=True) != ids:
            different += 1
            print(f"tokenized differently: {text!r}")
    print(
        f"{len(probes['texts']) - different} of {len(probes['texts'])} texts have the same tokens"
    )
    return different


if __name__ == "__main__":
    sys.exit(main())
