"""What the probe finds at engines that serve the bundled model. tests/data/engines/features.json
has what it found at real ones, and at the stand-in of SGLang, which does not run on a CPU.

`python -m tools.record_engine` writes it; docs/reference/engines.md is made of it.
"""

import asyncio
import json
import time
from typing import Any, Final

from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.upstream.endpoints import Endpoints, Probed
from inference_svc.upstream.llama_server import LlamaServer
from inference_svc.upstream.probe import PinnedIdentity
from inference_svc.upstream.sglang import Sglang
from inference_svc.upstream.target import UpstreamTarget, UpstreamVocabulary
from inference_svc.upstream.token_mode import TokenMode, already_open
from inference_svc.upstream.vllm import Vllm
from tests.support.engine_exchanges import RECORDINGS

FEATURES: Final = RECORDINGS / "features.json"
_PATIENCE_S: Final = 120.0
_GRAMMAR_FLAGS: Final = {each.name: each.grammar_flag for each in (LlamaServer, Sglang, Vllm)}


def recorded_features() -> dict[str, dict[str, Any]]:
    """What was found, by kind."""
    features: dict[str, dict[str, Any]] = json.loads(FEATURES.read_text())
    return features


def write_features(kind: str, found: dict[str, Any]) -> None:
    """Replace what was found at a kind."""
    known = recorded_features() if FEATURES.exists() else {}
    FEATURES.write_text(json.dumps({**known, kind: found}, indent=1, sort_keys=True) + "\n")


def find_features(url: str) -> dict[str, Any]:
    """Probe the engine at a URL as Corral does when it connects. Raises ValueError if it cannot be
    used."""
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    try:
        probed = asyncio.run(_probe(url, vocabulary))
    finally:
        vocabulary.close()
    features = probed.features
    return {
        "engine": features.engine,
        "sampling": sorted(features.sampling),
        "constraints": sorted(each.value for each in features.constraints),
        "takes_grammars": features.takes_grammars,
        "grammar_flag": _GRAMMAR_FLAGS[probed.engine.api.name],
        "max_logprobs": features.max_logprobs,
        "min_tokens": features.min_tokens,
        "ignore_eos": features.ignore_eos,
        "separates_projects": features.separates_projects,
    }


async def first_probe(target: UpstreamTarget, vocabulary: UpstreamVocabulary) -> Endpoints:
    """The URLs after the first probe, closed."""
    done = asyncio.Event()
    endpoints = Endpoints(
        target,
        TokenMode(target, already_open(vocabulary)),
        PinnedIdentity(),
        on_change=done.set,
        on_unusable=lambda _: done.set(),
    )
    endpoints.probe_due(time.monotonic())
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await done.wait()
    finally:
        await endpoints.close()
    return endpoints


async def _probe(url: str, vocabulary: Vocabulary) -> Probed:
    endpoints = await first_probe(UpstreamTarget("demo", [url]), vocabulary)
    if endpoints.probed is None:
        raise ValueError(endpoints.status[0].problem)
    return endpoints.probed
