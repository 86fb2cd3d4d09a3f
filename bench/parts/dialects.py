"""What a streamed token costs the gateway in each API, beside a chat of OpenAI's."""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from bench.contest import alternate
from bench.loadgen import exchange
from bench.measurement import CORRAL, Measurement, Result, median, values_by_round
from bench.parts.tokens import SETTINGS, SHAPE
from bench.servers import MODEL_NAME, Server, free_ports
from bench.stage import Part, Stage
from bench.streams import LoadError

STREAMS, TOKENS, QUICK_TOKENS, ROUNDS = 16, 400, 40, 5
ALLOWED: Final = 1.1
CHAT: Final = "/v1/chat/completions"
SCHEMA: Final = {"type": "string", "minLength": 8 * TOKENS}
"""Keeps the model from ending its answer, which not every API can ignore."""
NAMED: Final = {"name": "text", "schema": SCHEMA}
FORMAT: Final = {"type": "json_schema", **NAMED}
MESSAGES: Final = {"messages": [{"role": "user", "content": "Count."}]}
COUNT: Final = re.compile(
    rb'"(?:completion_tokens|output_tokens|eval_count|tokens_predicted)":(\d+)'
)


def bodies(length: int) -> dict[str, dict[str, Any]]:
    """The bodies of an answer of this many tokens, by route."""
    chat = {"type": "json_schema", "json_schema": NAMED}
    usage = {"stream_options": {"include_usage": True}}
    return {
        CHAT: MESSAGES | usage | {"max_tokens": length, "response_format": chat},
        "/v1/messages": MESSAGES | {"max_tokens": length, "output_config": {"format": FORMAT}},
        "/v1/responses": {"input": "Count.", "store": False, "max_output_tokens": length}
        | {"text": {"format": FORMAT}},
        "/api/chat": MESSAGES
        | {"format": SCHEMA, "think": False, "options": {"num_predict": length}},
        "/completion": {"prompt": "Count.", "n_predict": length, "json_schema": SCHEMA},
    }


def measure(stage: Stage) -> Iterator[Measurement]:
    """Stream answers over each API, from an engine that takes 25 ms for a step."""
    (port,) = free_ports(1)
    settings = SETTINGS | {"CORRAL_GATEWAY_CONTROL_TARGET": f"127.0.0.1:{port}"}
    with stage.corral(SHAPE, settings, inference="bench.paced_engine") as server:
        settings = {
            "CORRAL_CONTROL_LISTEN": f"127.0.0.1:{port}",
            "CORRAL_CONTROL_INFERENCE_TARGET": server.grpc_target,
        }
        with stage.control("control", settings) as control:
            server = replace(server, processes={**server.processes, **control.processes})
            for number in range(stage.rounds or stage.sizes(ROUNDS, 1)):
                for path in alternate([*bodies(0)], number):
                    yield token_cost(stage, server, path, number)


def token_cost(stage: Stage, server: Server, path: str, number: int) -> Measurement:
    """Measure the processor time of each process in microseconds for each token."""
    length = stage.sizes(TOKENS, QUICK_TOKENS)
    body = {"model": MODEL_NAME, "stream": True, **bodies(length)[path]}
    before = server.cpu_seconds()
    stage.runner.run(_load(server.url, path, json.dumps(body).encode(), length))
    after = server.cpu_seconds()
    cpu_s = {role: round(after[role] - before.get(role, 0.0), 2) for role in after}
    costs = {role: 1e6 * spent / length / STREAMS for role, spent in cpu_s.items()}
    figures = {f"{role}_us": round(cost, 1) for role, cost in costs.items()}
    return Measurement(path, number, CORRAL, costs["gateway"], figures, cpu_s)


async def _load(url: str, path: str, body: bytes, length: int) -> None:
    for _, reads in await asyncio.gather(*(exchange(url, path, body) for _ in range(STREAMS))):
        response = b"".join(data for _, data in reads)
        if COUNT.findall(response)[-1:] != [b"%d" % length]:
            raise LoadError(f"{path}: not {length} tokens, {response[-300:]!r}")


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare the gateway's time for a token with that of a chat in the same round."""
    chat = values_by_round(measurements, CHAT, CORRAL)
    results = []
    for path in [*bodies(0)][1:]:
        values = values_by_round(measurements, path, CORRAL)
        ratios = tuple(value / chat[number] for number, value in values.items() if chat[number])
        own, peer = median([*values.values()]), median([*chat.values()])
        results.append(Result(path, ratios, ALLOWED, own, peer, CHAT, "us", "at most"))
    return results


PART = Part(
    name="dialects",
    title="A streamed token in each API",
    text=(
        f"The processor time of the gateway for a token, in {STREAMS} answers of {TOKENS} tokens at"
        " once, beside that of OpenAI's chats. The bundled model, slowed down to 25 ms a step,"
        " sends every token by itself. `bench/results/dialects.json` has the figures of each"
        " process; the control service, which runs responses, takes twice as long again for theirs."
    ),
    measure=measure,
    conclude=conclude,
)
