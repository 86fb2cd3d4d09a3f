"""Random requests to every RPC of a real Corral, with random bytes or valid messages: a typed error
or a response, never UNKNOWN or INTERNAL, and afterwards the server works as before.

Two thousand with every `make test`; `make fuzz TIMES=500` sends a million.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from google.protobuf import message_factory

from svc_kit.auth.authenticator import ServiceToken
from svc_kit.auth.scopes import VLLM_METHODS, Scope
from svc_kit.errors.status import request_id_of
from tests.support.examples import TIMES, timeout
from tests.support.processes import Program, resident_bytes
from tests.support.random_requests import RandomRequests, describe
from tests.support.rpc import PARIS, connect, make_chat
from tests.support.services import MODEL, Corral
from tools.rpc_methods import METHODS

log = logging.getLogger(__name__)
pytestmark = pytest.mark.e2e

Metadata = tuple[tuple[str, str], ...]
REQUESTS: Final = 2000 * TIMES
CALLERS: Final = 12
DEFECTS: Final = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
ALL_METHODS: Final = {**METHODS, **VLLM_METHODS}
STOPS: Final = {"/corral.inference.v1.EngineService/Drain"}
"""Methods after which a server refuses what it should, so that nothing would be tested."""
MAX_GROWTH_BYTES: Final = 400 * 1024 * 1024
"""Caches that fill up included."""


def family_bytes(program: Program) -> int:
    """The resident memory of all processes of a program."""
    return sum(resident_bytes(process.pid) for process in program.family())


class Fuzzer:
    """Calls random methods with random requests, with the service token where it is needed."""

    def __init__(self, corral: Corral, token: ServiceToken, rng: random.Random) -> None:
        self._rng = rng
        self._token = (("authorization", f"Bearer {token.secret}"),)
        self._requests = RandomRequests(rng, (MODEL, "user_data", "assistants"))
        self._targets = {
            "corral.control.": corral.control,
            "corral.inference.": corral.target,
            "vllm.": corral.target,
        }
        self._methods = sorted(set(ALL_METHODS) - STOPS)
        self.codes: Counter[str] = Counter()
        self.defects: list[str] = []

    async def run(self, count: int) -> None:
        left = iter(range(count))
        async with asyncio.TaskGroup() as callers:
            for _ in range(CALLERS):
                callers.create_task(self._call_all(left))

    async def _call_all(self, left: Iterator[int]) -> None:
        channels = {
            prefix: grpc.aio.insecure_channel(target) for prefix, target in self._targets.items()
        }
        for _ in left:
            name = self._rng.choice(self._methods)
            prefixes = [prefix for prefix in channels if name.startswith(f"/{prefix}")]
            prefix = prefixes[0] if prefixes else self._rng.choice(list(channels))
            await self._call(channels[prefix], name)
        for channel in channels.values():
            await channel.close()

    async def _call(self, channel: grpc.aio.Channel, name: str) -> None:
        method = describe(name)
        messages = list(self._requests.make(method))
        try:
            metadata = self._token if ALL_METHODS[name].scope is Scope.SERVICE else ()
            for response in await exchange(channel, name, messages, metadata):
                kind = message_factory.GetMessageClass(method.output_type)
                self._requests.learn(kind.FromString(response))
            self.codes["OK"] += 1
        except grpc.aio.AioRpcError as error:
            self.codes[error.code().name] += 1
            # A client stream that is refused while it writes fails as INTERNAL in the client.
            is_clients = method.client_streaming and not request_id_of(error)
            if error.code() in DEFECTS and not is_clients:
                self.defects.append(f"{name} {messages!r:.2000}: {error.details()}")
        except asyncio.CancelledError:
            # gRPC's client cancels a call that ends while it writes the last request.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            self.codes["CANCELLED"] += 1


async def exchange(
    channel: grpc.aio.Channel, name: str, messages: list[bytes], metadata: Metadata
) -> list[bytes]:
    """Make a call of any kind and read at most 50 responses. Raises AioRpcError."""
    timeout_s = 0.2 if ALL_METHODS[name].is_long_lived else 2.0
    if len(messages) > 1:
        start: Any = channel.stream_stream(name)
        call = start(iter(messages), timeout=timeout_s, metadata=metadata)
    else:
        start = channel.unary_stream(name)
        call = start(messages[0], timeout=timeout_s, metadata=metadata)
    responses: list[bytes] = []
    async for response in call:
        responses.append(response)
        if len(responses) == 50:
            call.cancel()
            break
    return responses


@timeout(100)
async def test_no_request_causes_an_internal_error(corral: Corral, folder: Path) -> None:
    """Of either service; they answer afterwards, and their memory has not grown much."""
    seed = random.getrandbits(32)
    token = ServiceToken.read(folder / "data" / "service-token")
    fuzzer = Fuzzer(corral, token, random.Random(seed))
    before = family_bytes(corral.program)
    await fuzzer.run(REQUESTS)
    grown = family_bytes(corral.program) - before
    log.warning("seed %d: %s, grown by %d MiB", seed, dict(fuzzer.codes), grown >> 20)

    assert not fuzzer.defects
    assert fuzzer.codes.total() == REQUESTS
    assert fuzzer.codes["OK"] > REQUESTS // 100
    assert grown < MAX_GROWTH_BYTES
    async with connect(corral.target) as rpc:
        assert (await rpc.chat(make_chat())).text[0] == PARIS
