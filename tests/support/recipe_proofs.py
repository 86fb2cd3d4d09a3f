"""What a copy of the sources does after the recipes of CONTRIBUTING.md were carried out on it.

`python -m tests.support.recipe_proofs FOLDER` in the copy prints it as JSON.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from inference_svc.chat.parsers.formats import detect_format
from inference_svc.engine.kv_cache.origin import recipe_of
from inference_svc.engine.sampling_params import Sampling, Stage
from inference_svc.llama.sampling.candidates import Candidates
from inference_svc.llama.sampling.native_filters import ModelSizes, NativeFilters
from inference_svc.sampling_messages import to_sampling
from tests.support.control import SetClock, write_service_token
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import run_gateway
from tests.support.response_client import make_small_control
from tests.support.sequences import make_request
from tests.support.turns import Golden, Parsed


@asynccontextmanager
async def run_services(folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, SetClock]]:
    """A client of a gateway with a control service, and the clock of the latter."""
    token = write_service_token(folder)
    async with (
        make_small_control(folder, None) as control,
        run_gateway(control_target=control.target, service_token_file=token) as gateway,
        gateway.client() as http,
    ):
        yield http, control.clock


async def change_note(folder: Path, path: str, **required: str) -> list[str]:
    """`note` of an object that is created, read, changed, and changed otherwise."""
    async with run_services(folder) as (http, _):
        created = (await http.post(path, json={"note": "first", **required})).json()
        one = f"{path}/{created['id']}"
        read = (await http.get(one)).json()
        changed = (await http.post(one, json={"note": "second"})).json()
        other = (await http.post(one, json={"metadata": {"a": "b"}})).json()
    return [each["note"] for each in (created, read, changed, other)]


async def touch_store(folder: Path) -> int:
    """By how many seconds the route postpones the expiry of a store, an hour after its creation."""
    days = {"anchor": "last_active_at", "days": 1}
    async with run_services(folder) as (http, clock):
        created = (await http.post("/v1/vector_stores", json={"expires_after": days})).json()
        clock.advance(hours=1)
        touched = (await http.post(f"/v1/vector_stores/{created['id']}/touch")).json()
    return int(touched["expires_at"] - created["expires_at"])


async def sample() -> tuple[list[float], list[bool]]:
    """Two logits behind the filter of the temperature, with the parameters of a chat; whether saved
    states have the parameter, without it and with it."""
    fake, scratch = FakeInference(), Candidates(2)
    body = {"model": "fake", "messages": [{"role": "user", "content": "x"}], "temperature": 0.5}
    async with run_gateway(fake) as gateway, gateway.client() as http:
        await http.post("/v1/chat/completions", json={**body, "temp_floor": 2})
    sampling = to_sampling(fake.calls.requests[0].options.sampling, Sampling())
    filters = NativeFilters([Stage.TEMPERATURE], sampling, ModelSizes(None, 2, 8))
    scratch.fill(np.array([3.0, 1.0], np.float32), None)
    filters.apply(scratch, lambda: 0)
    logits = [float(logit) for logit in scratch.view()["logit"]]
    filters.close()
    recipes = [recipe_of(make_request(sampling=each)) for each in (Sampling(), sampling)]
    return logits, ["temp_floor" in recipe for recipe in recipes]


async def read_calls() -> Parsed:
    """A turn of a model whose template has the marker of the format."""
    text = 'Hi [ACME get_time {"a": 1}]'
    turn_format = detect_format("{{ '[ACME ' }}")
    return Golden("", turn_format, text, Parsed()).parse(text)


async def prove(folder: Path) -> dict[str, Any]:
    """What the copy does, by recipe; an error as its text."""
    folders = folder / "assistant", folder / "store", folder / "touched"
    for each in folders:
        each.mkdir()
    proofs = {
        "field of an assistant": change_note(folders[0], "/v1/assistants", model="m"),
        "field of a vector store": change_note(folders[1], "/v1/vector_stores"),
        "RPC with a route": touch_store(folders[2]),
        "sampling parameter": sample(),
        "format of tool calls": read_calls(),
    }
    return {
        name: (await asyncio.gather(proof, return_exceptions=True))[0]
        for name, proof in proofs.items()
    }


if __name__ == "__main__":
    found = asyncio.run(prove(Path(sys.argv[1])))
    sys.stdout.write(json.dumps(found, default=repr))
