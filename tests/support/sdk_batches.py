"""Runs batches on the demo model with the official SDK, and kills processes."""

import json
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import grpc
import httpx
import openai
from corral.control.v1 import batch_service_pb2 as pb
from corral.control.v1.batch_service_pb2_grpc import BatchServiceStub
from openai.types import Batch

from tests.support.batches import CHAT, batch_line, jsonl
from tests.support.processes import PATIENCE_S
from tests.support.services import MODEL, Corral

POISON = "<abort>"
"""The stop text at which these engines abort."""
ENGINE, CONTROL = "inference_svc.engine_process.main", "serve control"
FRONTEND, GATEWAY = "serve inference", "serve gateway"
OUTPUT_TOKENS = 40
LINES_AT_ONCE = 8
ENDED = ("completed", "failed", "expired", "cancelled")
FAST_RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
"""Channel options for a server that was killed often. The supervisor delays its restart by up to
15 s, and gRPC's default backoff would add as much."""


@dataclass(frozen=True)
class EndedBatch:
    """An ended batch, with the lines of its output and error files by custom_id."""

    batch: Batch
    completed: dict[str, Any]
    failed: dict[str, Any]


def make_chat_line(
    custom_id: str, content: str = "Tell me a story.", **body: Any
) -> dict[str, Any]:
    """A line for the demo model that generates `OUTPUT_TOKENS` tokens."""
    fields = {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        **body,
    }
    return batch_line(custom_id, CHAT, **fields)


def make_lines(count: int) -> list[dict[str, Any]]:
    """Return `count` lines with different ids."""
    return [make_chat_line(f"line-{number:03}") for number in range(count)]


def start_batch(
    client: openai.OpenAI,
    lines: Sequence[object],
    endpoint: Literal["/v1/chat/completions", "/v1/completions"] = "/v1/chat/completions",
) -> Batch:
    """Upload an input file and create a batch."""
    file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def wait_for_batch(corral: Corral, batch_id: str, completed: int | None = None) -> None:
    """Wait until `completed` lines have completed (None: until the batch has ended).

    Reconnects when the service is killed. Fails if no line ends within `PATIENCE_S`.
    """
    num_ended = -1
    while True:
        before = num_ended
        try:
            with grpc.insecure_channel(corral.control, FAST_RECONNECT) as channel:
                stub = BatchServiceStub(channel)
                request = pb.WatchBatchRequest(batch_id=batch_id)
                for answer in stub.WatchBatch(request, timeout=PATIENCE_S, wait_for_ready=True):
                    counts = answer.batch.request_counts
                    num_ended = counts.completed + counts.failed
                    if completed is not None and counts.completed >= completed:
                        return
                return
        except grpc.RpcError as error:
            has_progress = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and num_ended > before
            if error.code() is not grpc.StatusCode.UNAVAILABLE and not has_progress:
                raise


def read_batch(client: openai.OpenAI, batch_id: str) -> EndedBatch:
    batch = client.batches.retrieve(batch_id)
    assert batch.status in ENDED

    def lines(file_id: str | None) -> dict[str, Any]:
        if file_id is None:
            return {}
        parsed = [json.loads(text) for text in client.files.content(file_id).text.splitlines()]
        lines_by_id = {line["custom_id"]: line for line in parsed}
        assert len(lines_by_id) == len(parsed), "duplicate custom_id"
        return lines_by_id

    return EndedBatch(batch, lines(batch.output_file_id), lines(batch.error_file_id))


def kill_process(corral: Corral, words: str) -> None:
    """Send SIGKILL to the processes with these words in their command lines."""
    kill_all(find_processes(corral, words))


def find_processes(corral: Corral, words: str) -> list[int]:
    """The ids of the processes with these words in their command lines."""
    return [process.pid for process in corral.program.family() if words in process.command]


def kill_all(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def count_answered(corral: Corral) -> int:
    """The number of answered chats according to the metrics of the inference service."""
    metrics = corral.program.wait_for_line(r"metrics +\S+ +(\S+)", stream="stdout")[1]
    text = httpx.get(metrics, trust_env=False).text
    counts = re.findall(r'server_calls_total\{code="OK",method="[^"]*/Chat",[^}]*\} (\S+)', text)
    return int(sum(map(float, counts)))


def assert_totals(ended: EndedBatch) -> None:
    counts, usage = ended.batch.request_counts, ended.batch.usage
    usages = [line["response"]["body"]["usage"] for line in ended.completed.values()]
    assert counts is not None
    assert usage is not None
    assert (counts.completed, counts.failed) == (len(ended.completed), len(ended.failed))
    assert usage.input_tokens == sum(tokens["prompt_tokens"] for tokens in usages)
    assert usage.output_tokens == sum(tokens["completion_tokens"] for tokens in usages)
