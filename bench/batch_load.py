"""Runs chats as the lines of a batch, and the same chats as bare gRPC calls, with the same
concurrency. A batch is timed from its upload to its last output line.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc.aio
from corral.control.v1 import batch_service_pb2 as batch_pb
from corral.control.v1 import file_pb2
from corral.control.v1 import file_service_pb2 as file_pb
from corral.control.v1.batch_pb2 import Batch
from corral.control.v1.batch_service_pb2_grpc import BatchServiceStub
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from bench.servers import MODEL_NAME
from bench.streams import LoadError
from dialects.openai.chat.chat_request import chat_request, parse_chat

LINES_AT_ONCE: Final = 32
"""The default concurrency of batch lines in the control service."""
CHATS: Final = "/v1/chat/completions"
_CHUNK_BYTES: Final = 256 * 1024

Body = dict[str, Any]


def new_chats(count: int, first: int) -> list[Body]:
    """Bodies of chats of one token, numbered from `first`, so that no prompt repeats."""
    return [
        {
            "model": MODEL_NAME,
            "messages": [{"role": "user", "content": f"What is {number} plus one?"}],
            "max_tokens": 1,
            "ignore_eos": True,
        }
        for number in range(first, first + count)
    ]


async def run_batch(target: str, bodies: Sequence[Body], endpoint: str = CHATS) -> None:
    """Run a batch of these lines. Raises LoadError if a line did not complete."""
    async with grpc.aio.insecure_channel(target) as channel:
        files, batches = FileServiceStub(channel), BatchServiceStub(channel)
        file = (await files.CreateFile(_upload(bodies, endpoint))).file
        request = batch_pb.CreateBatchRequest(input_file_id=file.id, endpoint=endpoint)
        batch = (await batches.CreateBatch(request)).batch
        async for answer in batches.WatchBatch(batch_pb.WatchBatchRequest(batch_id=batch.id)):
            batch = answer.batch
    if batch.state != Batch.STATE_COMPLETED or batch.request_counts.failed:
        raise LoadError(f"the batch did not complete without failed lines: {batch}")


async def _upload(
    bodies: Sequence[Body], endpoint: str
) -> AsyncIterator[file_pb.CreateFileRequest]:
    header = file_pb2.FileHeader(filename="in.jsonl", purpose=file_pb2.FILE_PURPOSE_BATCH)
    yield file_pb.CreateFileRequest(header=header)
    lines = [
        {"custom_id": f"{number}", "method": "POST", "url": endpoint, "body": body}
        for number, body in enumerate(bodies)
    ]
    content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    for start in range(0, len(content), _CHUNK_BYTES):
        yield file_pb.CreateFileRequest(chunk=content[start : start + _CHUNK_BYTES])


async def run_bare(target: str, bodies: Sequence[Body]) -> None:
    """Send the same chats directly to the inference service and discard the responses."""
    requests = iter([chat_request(parse_chat(body)) for body in bodies])
    async with grpc.aio.insecure_channel(target) as channel:
        stub = InferenceServiceStub(channel)

        async def caller() -> None:
            for request in requests:
                async for _ in stub.Chat(request):
                    pass

        async with asyncio.TaskGroup() as group:
            for _ in range(LINES_AT_ONCE):
                group.create_task(caller())
