"""What a line of a batch costs over the engine's own time, through real processes, on the bundled
model.

A batch is timed from its upload to its end: each line is read, checked, stored, sent, rendered,
tokenized, computed, answered, committed and written. The engine's own time is the sum of its steps.
Each round sends as many chats by a bare gRPC client too, with as many calls open: what that costs
over the engine is the frontend's share, and the machine's.

    python -m bench.batches [--lines 1000] [--rounds 5] [--output-tokens 1]
"""

import argparse
import asyncio
import itertools
import json
import re
import statistics
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc.aio
from corral.control.v1 import batch_service_pb2 as batch_pb
from corral.control.v1 import file_pb2
from corral.control.v1 import file_service_pb2 as file_pb
from corral.control.v1.batch_pb2 import Batch
from corral.control.v1.batch_service_pb2_grpc import BatchServiceStub
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from bench.processes import peak_resident_bytes, resident_bytes
from bench.servers import MODEL_NAME, EngineShape, Server, control_beside, corral, free_ports
from inference_svc.models.references import BUNDLED_PATH
from openai_wire.requests import chat_request, parse_chat

LINES_AT_ONCE = 32
TARGET_MS = 2.0
ENDPOINT = "/v1/chat/completions"
MIB = 1 << 20
_CHUNK_BYTES = 256 * 1024


class Cost(NamedTuple):
    """Seconds: of the clock, and of the engine's steps meanwhile."""

    wall_s: float
    engine_s: float


def main() -> None:
    """Measure in turns and print each round and the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("lines", 1000), ("rounds", 5), ("output-tokens", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    overheads = [
        _tell(number, arguments.lines, *costs)
        for number, costs in enumerate(
            _measure(arguments.lines, arguments.rounds, arguments.output_tokens), start=1
        )
    ]
    median = statistics.median(overheads)
    verdict = "met" if median < TARGET_MS else "missed"
    print(f"median: {median:.2f} ms a line; under {TARGET_MS:g} ms was promised: {verdict}")


def _tell(number: int, lines: int, batch: Cost, bare: Cost) -> float:
    """Print a round; what a line cost over the engine's own time, in milliseconds."""

    def each(seconds: float) -> str:
        return f"{1e3 * seconds / lines:.2f}"

    over = batch.wall_s - batch.engine_s
    print(
        f"round {number}: ms a line: batch {each(batch.wall_s)}, its engine {each(batch.engine_s)},"
        f" over the engine {each(over)}; by bare calls {each(bare.wall_s)},"
        f" over the engine {each(bare.wall_s - bare.engine_s)}"
    )
    return 1e3 * over / lines


def _measure(lines: int, rounds: int, output_tokens: int) -> Iterator[tuple[Cost, Cost]]:
    shape = EngineShape(BUNDLED_PATH, slots=16, context_tokens=1024, threads=1)
    (metrics_port,) = free_ports(1)
    further = {"CORRAL_INFERENCE_MANAGEMENT_LISTEN": f"127.0.0.1:{metrics_port}"}
    metrics = f"http://127.0.0.1:{metrics_port}/metrics"
    numbers = itertools.count()
    with (
        tempfile.TemporaryDirectory() as name,
        corral(shape, Path(name), further) as server,
        control_beside(server, Path(name) / "control") as (target, pid),
    ):
        resident = resident_bytes(pid)
        for _ in range(rounds):
            batch_lines, bare_lines = (
                [_request(next(numbers), output_tokens) for _ in range(lines)] for _ in "ab"
            )
            batch = _timed(metrics, _run_batch(target, batch_lines))
            bare = _timed(metrics, _run_bare(server, bare_lines))
            yield batch, bare
        print(f"control grew by at most {(peak_resident_bytes(pid) - resident) / MIB:.0f} MiB")


def _timed(metrics: str, work: Coroutine[Any, Any, None]) -> Cost:
    before, started = _engine_seconds(metrics), time.perf_counter()
    asyncio.run(work)
    return Cost(time.perf_counter() - started, _engine_seconds(metrics) - before)


def _engine_seconds(metrics: str) -> float:
    """What the steps of the engine took so far."""
    with urllib.request.urlopen(metrics) as answer:  # noqa: S310  # our own loopback URL
        text = answer.read().decode()
    sums = re.findall(r"^corral_engine_step_seconds_sum\{[^}]*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, sums))


def _request(number: int, output_tokens: int) -> dict[str, object]:
    """The body of a chat that nobody has asked before."""
    return {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": f"What is {number} plus one?"}],
        "max_tokens": output_tokens,
        "ignore_eos": True,
    }


async def _run_batch(target: str, bodies: list[dict[str, object]]) -> None:
    """From the upload to the end. Raises RuntimeError where a line did not complete."""
    async with grpc.aio.insecure_channel(target) as channel:
        files, batches = FileServiceStub(channel), BatchServiceStub(channel)
        file = (await files.CreateFile(_upload(bodies))).file
        asked = batch_pb.CreateBatchRequest(input_file_id=file.id, endpoint=ENDPOINT)
        batch = (await batches.CreateBatch(asked)).batch
        async for answer in batches.WatchBatch(batch_pb.WatchBatchRequest(batch_id=batch.id)):
            batch = answer.batch
    if batch.state != Batch.STATE_COMPLETED or batch.request_counts.failed:
        raise RuntimeError(f"the batch did not complete: {batch}")


async def _upload(bodies: list[dict[str, object]]) -> AsyncIterator[file_pb.CreateFileRequest]:
    header = file_pb2.FileHeader(filename="in.jsonl", purpose=file_pb2.FILE_PURPOSE_BATCH)
    yield file_pb.CreateFileRequest(header=header)
    content = b"".join(
        json.dumps(
            {"custom_id": f"{number}", "method": "POST", "url": ENDPOINT, "body": body}
        ).encode()
        + b"\n"
        for number, body in enumerate(bodies)
    )
    for start in range(0, len(content), _CHUNK_BYTES):
        yield file_pb.CreateFileRequest(chunk=content[start : start + _CHUNK_BYTES])


async def _run_bare(server: Server, bodies: list[dict[str, object]]) -> None:
    """The same chats, read and answered as little as possible."""
    requests = iter([chat_request(parse_chat(body)) for body in bodies])
    async with grpc.aio.insecure_channel(server.grpc_target) as channel:
        stub = InferenceServiceStub(channel)

        async def caller() -> None:
            for request in requests:
                async for _ in stub.Chat(request):
                    pass

        async with asyncio.TaskGroup() as group:
            for _ in range(LINES_AT_ONCE):
                group.create_task(caller())


if __name__ == "__main__":
    main()
