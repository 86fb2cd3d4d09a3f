"""The seeds that engines get."""

import pytest

from inference_svc.upstream.engine_api import EngineApi, Generation
from inference_svc.upstream.llama_server import LlamaServer
from inference_svc.upstream.pieces import PieceIndex
from inference_svc.upstream.sglang import Sglang
from inference_svc.upstream.vllm import Vllm
from tests.support.byte_engine import ByteVocabulary
from tests.support.sequences import make_request

RANDOM = 0xFFFFFFFF
"""With which llama.cpp chooses a seed (LLAMA_DEFAULT_SEED)."""
APIS: dict[str, tuple[EngineApi, int]] = {
    "llama_server": (LlamaServer(PieceIndex(ByteVocabulary())), RANDOM - 1),
    "vllm": (Vllm(), (1 << 63) - 1),
    "sglang": (Sglang(), (1 << 31) - 1),
}


def seed_of(api: EngineApi, seed: int, choice: int) -> int:
    request = make_request(seed=seed, choice=choice)
    body = api.body(Generation(request, "m", [1], 9))[1]
    sampling = body.get("sampling_params", body)
    found: int = sampling["sampling_seed" if api.name == "sglang" else "seed"]
    return found


@pytest.mark.parametrize(("api", "most"), APIS.values(), ids=APIS)
@pytest.mark.parametrize("seed", [0, 7, RANDOM - 1, RANDOM, (1 << 63) - 1, (1 << 64) - 1])
@pytest.mark.parametrize("choice", [0, 1, 2])
def test_every_seed_is_one_that_the_engine_repeats(
    api: EngineApi, most: int, seed: int, choice: int
) -> None:
    """And each choice has another one."""
    found = seed_of(api, seed, choice)
    assert 0 <= found <= most
    assert found != seed_of(api, seed, choice + 1)
    if seed < 8:
        assert found == seed + choice
