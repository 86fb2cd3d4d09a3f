"""Closed-loop load through Corral's gRPC method `Generate`, with token ids as prompts.

Compared with `llama-batched-bench` it shows the cost of the engine and its frontend; compared with
`loadgen`, the cost of the gateway. Messages are parsed after the measurement.
"""

import asyncio
import time
from contextlib import nullcontext

import grpc.aio
from corral.inference.v1 import generation_pb2
from corral.inference.v1.inference_service_pb2 import (
    GenerateRequest,
    GenerateResponse,
    TokenIds,
)

from bench.streams import Arrival, LoadError, Stream, check_streams
from bench.workload import Workload

METHOD = "/corral.inference.v1.InferenceService/Generate"
TIMEOUT_S = 600.0


async def run_load(target: str, workload: Workload, model: str, key: str = "") -> list[Stream]:
    """Send the workload's requests over one channel and return their streams.

    `key` is an API key, or empty if the server requires none. Raises LoadError if a request fails
    or does not produce exactly the requested number of tokens.
    """
    streams: list[Stream] = []
    queue = enumerate(workload.token_prompts())
    order = asyncio.Lock()
    metadata = (("authorization", f"Bearer {key}"),) if key else ()

    async with grpc.aio.insecure_channel(target) as channel:
        # without a deserializer the client returns bytes
        generate: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(METHOD)

        async def caller() -> None:
            for number, ids in queue:
                options = workload.to_proto(number)
                request = GenerateRequest(
                    model=model, token_ids=TokenIds(ids=ids), options=options
                ).SerializeToString()
                try:
                    async with order if workload.pinned else nullcontext():
                        sent = time.perf_counter()
                        events = aiter(generate(request, timeout=TIMEOUT_S, metadata=metadata))
                        accepted = await anext(events)
                        reads = [(time.perf_counter(), accepted)]
                    async for message in events:
                        reads.append((time.perf_counter(), message))
                except grpc.aio.AioRpcError as error:
                    raise LoadError(f"{error.code().name}: {error.details()}") from error
                streams.append(read_stream(sent, reads))

        async with asyncio.TaskGroup() as group:
            for _ in range(workload.concurrency):
                group.create_task(caller())
    check_streams(streams, workload.outputs)
    return streams


def read_stream(sent: float, reads: list[tuple[float, bytes]]) -> Stream:
    """Parse recorded messages. Raises LoadError if the response is incomplete."""
    arrivals, usage = [], generation_pb2.Usage()
    for arrived, message in reads:
        event = GenerateResponse.FromString(message)
        if event.HasField("delta") and event.delta.num_tokens:
            arrivals.append(Arrival(arrived, event.delta.num_tokens))
        elif event.HasField("done"):
            usage = event.done.usage
    if not usage.completion_tokens:
        raise LoadError("the stream ended without usage")
    return Stream(
        sent=sent,
        ended=reads[-1][0],
        arrivals=tuple(arrivals),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )
