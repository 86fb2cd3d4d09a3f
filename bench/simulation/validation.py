"""The same trace on real services with paced engines, on loopback, and in the simulation.

Each replica is an inference service with its scheduler and prefix cache; the channel is that of
gateways. The simulation gets the addresses and keys, so its homes are the real ones.
"""

import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc.aio
from corral.inference.v1.inference_service_pb2 import GenerateRequest, TokenIds
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from bench.paths import BUNDLED_MODEL
from bench.replicas import paced_replicas
from bench.servers import EngineShape
from bench.simulation.replica import ReplicaShape
from bench.simulation.simulator import Policy, simulate
from bench.simulation.traces import Conversation, TraceShape, make_trace, perfect_hit_rate
from bench.step_times import StepTimes
from bench.streams import quantile
from bench.workload import PLAIN_TOKENS
from svc_kit.rpc.prefix_key import prefix_key
from svc_kit.rpc.replica_channel import open_replica_channel

SLOTS: Final = 4
ENGINE: Final = EngineShape(BUNDLED_MODEL, SLOTS, context_tokens=2048, threads=1)
TIMES: Final = StepTimes(0.04, 0.004, 0.004)
"""Long enough for eight engines on two cores."""
SHAPE: Final = TraceShape(
    "validation",
    system_tokens=150,
    text_tokens=40,
    long_tokens=400,
    output_tokens=40,
    turns=4,
    pause_s=2.0,
    max_tokens=1500,
)
_ROUND_ROBIN: Final = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


class Compared(NamedTuple):
    """Figures of one policy on real replicas and in the simulation."""

    policy: str
    replicas: int
    requests: int
    hit_rates: tuple[float, float]
    waits_p50_s: tuple[float, float]
    waits_p90_s: tuple[float, float]
    perfect: float


def validate(
    counts: Sequence[int], corral: Policy, turns: Policy, folder: Path, *, seconds: float
) -> Iterator[Compared]:
    """Compare both policies for each count of replicas. `folder` gets the logs."""
    for num_replicas in counts:
        for policy in (corral, turns):
            trace = make_trace(
                SHAPE,
                TIMES,
                num_replicas=num_replicas,
                slots=SLOTS,
                load=0.5,
                seconds=seconds,
                seed=num_replicas,
            )
            trace = [each._replace(key=prefix_key(_request(each, []), {})) for each in trace]
            own = folder / f"{policy.name} {num_replicas}"
            with paced_replicas(num_replicas, ENGINE, TIMES, own) as replicas:
                names = replicas.targets
                hits, waits_s = asyncio.run(_run(trace, names, is_corral=policy is corral))
            shape = ReplicaShape(TIMES, SLOTS, cache_tokens=10**9)
            outcome = simulate(trace, policy, shape, num_replicas=num_replicas, names=names)
            yield Compared(
                policy.name,
                num_replicas,
                len(waits_s),
                (round(hits, 4), round(outcome.hit_rate, 4)),
                _both(waits_s, outcome.waits_s, 0.5),
                _both(waits_s, outcome.waits_s, 0.9),
                round(perfect_hit_rate(trace), 4),
            )


def _both(real: Sequence[float], simulated: Sequence[float], share: float) -> tuple[float, float]:
    return round(quantile(real, share), 4), round(quantile(simulated, share), 4)


async def _run(
    trace: Sequence[Conversation], names: Sequence[str], *, is_corral: bool
) -> tuple[float, list[float]]:
    """Return the hit rate, and the times to the first token of all requests."""
    if is_corral:
        channel = open_replica_channel(",".join(names), outlives_engines=True)
    else:
        options = [("grpc.service_config", _ROUND_ROBIN)]
        channel = grpc.aio.insecure_channel(f"ipv4:{','.join(names)}", options)
    async with channel:
        await asyncio.wait_for(channel.channel_ready(), 60)
        await asyncio.sleep(3)  # for the first reports of load
        stub: Any = InferenceServiceStub(channel)
        started_at = time.monotonic()
        talks = [_talk(stub, each, started_at + each.starts_at) for each in trace]
        answers = [answer for talk in await asyncio.gather(*talks) for answer in talk]
    cached, prompts = (sum(each[field] for each in answers) for field in (1, 2))
    return cached / prompts, [wait_s for wait_s, _, _ in answers]


async def _talk(
    stub: Any, conversation: Conversation, starts_at: float
) -> list[tuple[float, int, int]]:
    """Send the turns of a conversation. Return the wait, cached and prompt tokens of each."""
    await asyncio.sleep(starts_at - time.monotonic())
    answers, said = [], []
    for number, turn in enumerate(conversation.turns):
        await asyncio.sleep(turn.pause_s if number else 0.0)
        said += _text(f"{conversation.number} {number}", turn.text_tokens)
        request = _request(conversation, said)
        request.options.stopping.max_tokens = turn.output_tokens
        sent_at, first_at = time.monotonic(), None
        async for message in stub.Generate(request, timeout=600):
            if message.delta.num_tokens and first_at is None:
                first_at = time.monotonic()
            said += message.delta.token_ids
            usage = message.done.usage
        answers.append(((first_at or sent_at) - sent_at, usage.cached_tokens, usage.prompt_tokens))
    return answers


def _request(conversation: Conversation, said: Sequence[int]) -> GenerateRequest:
    ids = [*_text(f"system {conversation.tenant}", conversation.system_tokens), *said]
    request = GenerateRequest(model="bench", token_ids=TokenIds(ids=ids))
    request.options.cache.affinity = conversation.key
    request.options.output.token_ids = True
    request.options.stopping.ignore_eos = True
    return request


def _text(seed: str, count: int) -> list[int]:
    return random.Random(seed).choices(PLAIN_TOKENS, k=count)
