"""Chats as the lines of a batch, and the same ones by bare gRPC calls, each as many at a time.

A batch is carried out from its upload to its end: each line is read, checked, stored, sent,
rendered, tokenized, computed, answered, committed and written.
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
from openai_wire.chat.chat_request import chat_request, parse_chat

LINES_AT_ONCE: Final = 32
"""As many as the control service has under way by itself."""
_ENDPOINT: Final = "/v1/chat/completions"
_CHUNK_BYTES: Final = 256 * 1024

Body = dict[str, Any]


def new_chats(count: int, first: int) -> list[Body]:
    """Bodies of chats of one token, numbered from `first`: none has been asked before."""
    return [
        {
            "model": MODEL_NAME,
            "messages": [{"role": "user", "content": f"What is {number} plus one?"}],
            "max_tokens": 1,
            "ignore_eos": True,
        }
        for number in range(first, first + count)
    ]


async def run_batch(target: str, bodies: Sequence[Body]) -> None:
    """Carry a batch of these lines out. Raises LoadError where one did not complete."""
    async with grpc.aio.insecure_channel(target) as channel:
        files, batches = FileServiceStub(channel), BatchServiceStub(channel)
        file = (await files.CreateFile(_upload(bodies))).file
        asked = batch_pb.CreateBatchRequest(input_file_id=file.id, endpoint=_ENDPOINT)
        batch = (await batches.CreateBatch(asked)).batch
        async for answer in batches.WatchBatch(batch_pb.WatchBatchRequest(batch_id=batch.id)):
            batch = answer.batch
    if batch.state != Batch.STATE_COMPLETED or batch.request_counts.failed:
        raise LoadError(f"the batch did not complete: {batch}")


async def _upload(bodies: Sequence[Body]) -> AsyncIterator[file_pb.CreateFileRequest]:
    header = file_pb2.FileHeader(filename="in.jsonl", purpose=file_pb2.FILE_PURPOSE_BATCH)
    yield file_pb.CreateFileRequest(header=header)
    lines = [
        {"custom_id": f"{number}", "method": "POST", "url": _ENDPOINT, "body": body}
        for number, body in enumerate(bodies)
    ]
    content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    for start in range(0, len(content), _CHUNK_BYTES):
        yield file_pb.CreateFileRequest(chunk=content[start : start + _CHUNK_BYTES])


async def run_bare(target: str, bodies: Sequence[Body]) -> None:
    """Ask the inference service the same, read and answered as little as possible."""
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
