"""A T5 with random weights and its greedy outputs, by transformers; runs in its own environment.

Reads `{"config": {...}, "seed": n, "sources": [[token, ...], ...], "max_tokens": n}` from its
input. Writes the weights under their names in PyTorch, `outputs` (sources x tokens, padded) and
`logits` (sources x tokens x vocabulary) to the file of its argument.
"""

import json
import sys
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict
from transformers import FlaxT5ForConditionalGeneration, T5Config

job = json.load(sys.stdin)
config = T5Config(**job["config"])
model = FlaxT5ForConditionalGeneration(config, seed=job["seed"])

longest = max(map(len, job["sources"]))
tokens, mask = np.zeros((2, len(job["sources"]), longest), np.int32)
for i, source in enumerate(job["sources"]):
    tokens[i, : len(source)], mask[i, : len(source)] = source, 1
generated = model.generate(
    tokens, attention_mask=mask, do_sample=False, max_new_tokens=job["max_tokens"]
)
sequences = np.asarray(generated.sequences)
logits = model(tokens, attention_mask=mask, decoder_input_ids=sequences[:, :-1]).logits

arrays: dict[str, Any] = {"outputs": sequences[:, 1:], "logits": np.asarray(logits)}
for path, values in flatten_dict(model.params).items():
    is_matrix = path[-1] == "kernel"  # of shape (inputs, outputs)
    arrays[".".join([*path[:-1], "weight"])] = np.asarray(values.T if is_matrix else values)
np.savez(sys.argv[1], **arrays)
