"""Batches on the demo model as the official SDK sees them, and kills of what takes part in them."""

import json
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
SOON_BACK = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1000)]
"""For a channel to a server that has died often: the supervisor lets it wait up to 15 s by then,
and gRPC by itself would find out as much later."""


@dataclass(frozen=True)
class Ended:
    """A batch that has ended, with the lines of its files by custom_id; each stands there once."""

    batch: Batch
    completed: dict[str, Any]
    failed: dict[str, Any]


def make_chat_line(
    custom_id: str, content: str = "Tell me a story.", **body: Any
) -> dict[str, Any]:
    """A line for the demo model, of a known length."""
    fields = {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        **body,
    }
    return batch_line(custom_id, CHAT, **fields)


def stories(count: int) -> list[dict[str, Any]]:
    """So many lines."""
    return [make_chat_line(f"line-{number:03}") for number in range(count)]


def begin(client: openai.OpenAI, lines: Sequence[object]) -> Batch:
    """A batch over a new file."""
    file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


def follow(corral: Corral, batch_id: str, completed: int | None = None) -> None:
    """Wait until so many lines have completed (unset: until the end), told by the service itself.

    What is killed meanwhile is waited for; lines may take as long as they like while others end.
    """
    num_ended = -1
    while True:
        before = num_ended
        try:
            with grpc.insecure_channel(corral.control, SOON_BACK) as channel:
                stub = BatchServiceStub(channel)
                request = pb.WatchBatchRequest(batch_id=batch_id)
                for answer in stub.WatchBatch(request, timeout=PATIENCE_S, wait_for_ready=True):
                    counts = answer.batch.request_counts
                    num_ended = counts.completed + counts.failed
                    if completed is not None and counts.completed >= completed:
                        return
                return
        except grpc.RpcError as error:
            gets_on = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and num_ended > before
            if error.code() is not grpc.StatusCode.UNAVAILABLE and not gets_on:
                raise


def outcome(client: openai.OpenAI, batch_id: str) -> Ended:
    """The batch and its files, by the SDK."""
    batch = client.batches.retrieve(batch_id)
    assert batch.status in ENDED

    def lines(file_id: str | None) -> dict[str, Any]:
        if file_id is None:
            return {}
        found = [json.loads(text) for text in client.files.content(file_id).text.splitlines()]
        by_id = {line["custom_id"]: line for line in found}
        assert len(by_id) == len(found), "a custom_id stands there twice"
        return by_id

    return Ended(batch, lines(batch.output_file_id), lines(batch.error_file_id))


def kill(corral: Corral, words: str) -> None:
    """SIGKILL for one of its processes, unless it has just died anyway."""
    for process in corral.program.family():
        if words in process.command:
            os.kill(process.pid, signal.SIGKILL)


def answered_chats(corral: Corral) -> int:
    """How many chats the inference service has answered, by its own count."""
    metrics = corral.program.wait_for_line(r"metrics +\S+ +(\S+)", stream="stdout")[1]
    text = httpx.get(metrics, trust_env=False).text
    counts = re.findall(r'server_calls_total\{code="OK",method="[^"]*/Chat",[^}]*\} (\S+)', text)
    return int(sum(map(float, counts)))


def assert_sums(ended: Ended) -> None:
    """Counts and usage are those of the lines."""
    counts, usage = ended.batch.request_counts, ended.batch.usage
    each = [line["response"]["body"]["usage"] for line in ended.completed.values()]
    assert counts is not None
    assert usage is not None
    assert (counts.completed, counts.failed) == (len(ended.completed), len(ended.failed))
    assert usage.input_tokens == sum(tokens["prompt_tokens"] for tokens in each)
    assert usage.output_tokens == sum(tokens["completion_tokens"] for tokens in each)
