"""Measured requests: the same prompts, lengths and sampling for every server.

Each request carries all sampling fields, so that defaults of the servers have no effect, and
ignores the end-of-sequence token, so that all outputs have the requested length.
"""

import random
from dataclasses import dataclass, replace
from typing import Any

from corral.inference.v1 import generation_pb2, sampling_pb2

_TEXT = """time river stone light house paper green water north music table glass cloud field train
metal bread winter garden letter silver window bridge forest market summer"""
WORDS = _TEXT.split()  # one token each, with a leading space, in the qwen2 vocabulary
PLAIN_TOKENS = range(300, 1500)  # text tokens in all vocabularies used here


@dataclass(frozen=True)
class Sampling:
    """All sampling fields of one request. Disabled filters are sent as disabled."""

    name: str
    temperature: float
    top_k: int
    top_p: float
    min_p: float

    def to_json(self, seed: int) -> dict[str, Any]:
        """Return the fields of an OpenAI-compatible body, with llama-server's names."""
        return {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "typical_p": 1.0,
            "top_n_sigma": -1.0,
            "xtc_probability": 0.0,
            "dynatemp_range": 0.0,
            "repeat_penalty": 1.0,
            "repeat_last_n": 64,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "dry_multiplier": 0.0,
            "mirostat": 0,
            "min_keep": 0,
            "seed": seed,
        }

    def to_proto(self, seed: int) -> sampling_pb2.SamplingParams:
        """Return the same fields as a Corral message."""
        return sampling_pb2.SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=1.0,
            top_n_sigma=-1.0,
            xtc_probability=0.0,
            dynatemp_range=0.0,
            repetition_penalty=1.0,
            penalty_last_n=64,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            dry=sampling_pb2.DryParams(multiplier=0.0),
            mirostat=sampling_pb2.MirostatParams(version=0),
            min_keep=0,
            seed=seed,
        )


SAMPLINGS = {
    "greedy": Sampling("greedy", temperature=0.0, top_k=40, top_p=0.95, min_p=0.05),
    "sampled": Sampling("sampled", temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
}


@dataclass(frozen=True)
class Workload:
    """Requests of one size, sent in a closed loop by `concurrency` callers."""

    requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    sampling: Sampling
    seed: int = 0
    shared_prefix_tokens: int = 0
    brief_tokens: int = 0  # output of every second request; 0: `output_tokens`
    reuse: bool = True  # whether the server may reuse computed prefixes
    pinned: bool = False  # assign request N to slot N, where the server supports it
    as_ids: bool = False  # over HTTP: send the prompts of `token_prompts`
    counted: bool = False  # over HTTP: request token counts in each chunk (llama-server)
    priority: generation_pb2.Priority = generation_pb2.PRIORITY_UNSPECIFIED  # over gRPC

    @property
    def outputs(self) -> list[int]:
        """Number of output tokens of each request."""
        brief = self.brief_tokens or self.output_tokens
        return [brief if i % 2 else self.output_tokens for i in range(self.requests)]

    def in_round(self, number: int) -> "Workload":
        """Return the same load with new prompts for one round."""
        return replace(self, seed=10_000 * (number + 1) + self.seed)

    def text_prompts(self) -> list[str]:
        """Return a different prompt for each request, determined by the seed."""
        rng = random.Random(self.seed)
        shared = rng.choices(WORDS, k=self.shared_prefix_tokens)
        own = [rng.choices(WORDS, k=self.prompt_tokens) for _ in range(self.requests)]
        return [" ".join(shared + words) for words in own]

    def token_prompts(self) -> list[list[int]]:
        """Return prompts like those of `text_prompts`, as token ids."""
        rng = random.Random(self.seed)
        shared = rng.choices(PLAIN_TOKENS, k=self.shared_prefix_tokens)
        own = [rng.choices(PLAIN_TOKENS, k=self.prompt_tokens) for _ in range(self.requests)]
        return [shared + ids for ids in own]

    def to_json(self, model: str, number: int = 0) -> dict[str, Any]:
        """Return the body of a streamed completion request without its prompt."""
        body = {
            "model": model,
            "max_tokens": self.outputs[number],
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            **self.sampling.to_json(self.seed),
        }
        if not self.reuse:
            body["cache_prompt"] = False
        if self.pinned:
            body["id_slot"] = number
        if self.counted:
            body["timings_per_token"] = True
        return body

    def to_proto(self, number: int = 0) -> generation_pb2.GenerationOptions:
        """Return the same options for `Generate`."""
        return generation_pb2.GenerationOptions(
            sampling=self.sampling.to_proto(self.seed),
            stopping=generation_pb2.StoppingParams(
                max_tokens=self.outputs[number], ignore_eos=True
            ),
            cache=generation_pb2.CacheOptions(reuse=self.reuse),
            scheduling=generation_pb2.SchedulingOptions(priority=self.priority),
        )
