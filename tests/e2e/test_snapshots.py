"""Snapshots of sequences: saved, restored with other sizes, and resumed identically."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2, sampling_pb2, snapshot_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.models.sources import BUNDLED_PATH
from svc_kit.rpc.replica_channel import open_replica_channel
from tests.support.gguf_patch import copy_with_template
from tests.support.rpc import (
    Answer,
    Rpc,
    call_error,
    connect,
    gather,
    options,
)
from tests.support.services import run_inference

pytestmark = pytest.mark.e2e

TEXT = "Tell me of the road over the hills, and of those who walk it. " * 3
NUM_BEFORE, NUM_MORE = 15, 40
NUM_SESSIONS = 8
"""Whose homes are probably both of two replicas."""
ENDLESS = 10_000  # far more than is generated before the snapshot is saved
SAMPLING: Mapping[str, Any] = {
    "temperature": 1.1,
    "seed": 7,
    "repetition_penalty": 1.1,
    "mirostat": sampling_pb2.MirostatParams(version=2, tau=4.0),
}


def story_request(max_tokens: int, **settings: Any) -> pb.GenerateRequest:
    """Return a request with a sampler whose state is not visible in its output."""
    stopping = {"max_tokens": max_tokens, "ignore_eos": True}
    message = options(sampling=SAMPLING, stopping=stopping, output={"token_ids": True}, **settings)
    return pb.GenerateRequest(text=TEXT, options=message)


class Saved(NamedTuple):
    """A snapshot, and the output of its sequence before and after it."""

    snapshot: snapshot_pb2.Snapshot
    answer: Answer


async def save_midway(rpc: Rpc) -> Saved:
    """Save a running sequence and continue it for some tokens."""
    answer, snapshot = Answer(), snapshot_pb2.Snapshot()
    stream = rpc.inference.Generate(story_request(ENDLESS))
    async for response in stream:
        answer.add(response)
        if not snapshot.id and len(answer.tokens[0]) >= NUM_BEFORE:
            saving = engine_pb.SaveSnapshotRequest(request_id=answer.accepted.request_id)
            snapshot = (await rpc.engine.SaveSnapshot(saving)).snapshot
        total = answer.accepted.prompt_tokens + len(answer.tokens[0])
        if snapshot.id and total > snapshot.num_tokens + NUM_MORE:
            break
    stream.cancel()
    return Saved(snapshot, answer)


async def restore(rpc: Rpc, snapshot_id: str) -> engine_pb.RestoreSnapshotResponse:
    return await rpc.engine.RestoreSnapshot(
        engine_pb.RestoreSnapshotRequest(snapshot_id=snapshot_id)
    )


async def test_a_sequence_continues_on_another_server(tmp_path: Path) -> None:
    """With other slots and the same tokens. Damaged and foreign snapshots are refused."""
    with run_inference(tmp_path, {"engine.slots": 2}) as service:
        async with connect(service.target) as rpc:
            snapshot, original = await save_midway(rpc)
            load = (await rpc.engine.GetLoad(engine_pb.GetLoadRequest())).load

    file = tmp_path / "data" / "snapshots" / f"{snapshot.id}.snapshot"
    assert snapshot.request_id == original.accepted.request_id
    assert (load.num_snapshot_files, load.snapshot_file_bytes) == (1, file.stat().st_size)

    with run_inference(tmp_path, {"engine.slots": 3}) as service:
        async with connect(service.target) as rpc:
            restored = await restore(rpc, snapshot.id)
            tokens = list(restored.output_token_ids)
            choice = generation_pb2.ResumedChoice(output_token_ids=tokens, snapshot_id=snapshot.id)
            continuation = story_request(len(tokens) + NUM_MORE, resume=[choice])
            resumed = await gather(rpc.inference.Generate(continuation))
            data = bytearray(file.read_bytes())
            file.write_bytes(data[:-1])
            truncated = await call_error(restore(rpc, snapshot.id))
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
            altered = await call_error(restore(rpc, snapshot.id))
            data[len(data) // 2] ^= 1
            file.write_bytes(data)

    assert restored.snapshot == snapshot
    assert len(restored.prompt_token_ids) == original.accepted.prompt_tokens
    assert len(tokens) >= NUM_BEFORE
    assert len(resumed.tokens[0]) == NUM_MORE
    assert [*tokens, *resumed.tokens[0]] == original.tokens[0][: len(tokens) + NUM_MORE]
    usage = resumed.done.usage
    assert (usage.cached_tokens, usage.cache_source) == (
        original.accepted.prompt_tokens,
        generation_pb2.CACHE_SOURCE_DISK,
    )
    assert (truncated.reason, truncated.metadata["fault"]) == ("SNAPSHOT_CORRUPT", "truncated")
    assert (altered.reason, altered.metadata["fault"]) == ("SNAPSHOT_CORRUPT", "altered")

    variant = copy_with_template(BUNDLED_PATH, tmp_path / "other.gguf", "{{ messages[0].content }}")
    with run_inference(tmp_path, {"models": [str(variant)]}) as service:
        async with connect(service.target) as rpc:
            foreign = await call_error(restore(rpc, snapshot.id))

    assert foreign.code == grpc.StatusCode.FAILED_PRECONDITION
    assert (foreign.reason, foreign.metadata["aspect"]) == ("SNAPSHOT_INCOMPATIBLE", "model")
    assert foreign.metadata["found"] == snapshot.model_digest


async def test_a_sequence_continues_at_the_replica_that_has_its_snapshot(tmp_path: Path) -> None:
    """Whatever its home: the other one says that it lacks it when it has accepted the request."""
    folders = tmp_path / "one", tmp_path / "other"
    for folder in folders:
        folder.mkdir()
    with run_inference(folders[0]) as one, run_inference(folders[1]) as other:
        targets = f"{one.target},{other.target}"
        async with open_replica_channel(targets, outlives_engines=True) as channel:
            rpc = Rpc(channel)
            snapshot, original = await save_midway(rpc)
            tokens = [*(await restore(rpc, snapshot.id)).output_token_ids]
            choice = generation_pb2.ResumedChoice(output_token_ids=tokens, snapshot_id=snapshot.id)
            caches = [generation_pb2.CacheOptions(affinity=str(n)) for n in range(NUM_SESSIONS)]
            answers = [
                await rpc.generate(
                    story_request(len(tokens) + NUM_MORE, resume=[choice], cache=cache)
                )
                for cache in caches
            ]

    assert {tuple(answer.tokens[0]) for answer in answers} == {
        tuple(original.tokens[0][len(tokens) : len(tokens) + NUM_MORE])
    }


async def test_a_kept_sequence_is_saved_and_dropped_later(rpc: Rpc) -> None:
    """A sequence that ended with `cache.keep` can be saved until it is dropped."""
    keep = generation_pb2.CacheOptions(keep=True)
    answer = await gather(rpc.inference.Generate(story_request(NUM_MORE, cache=keep)))
    saving = engine_pb.SaveSnapshotRequest(request_id=answer.accepted.request_id)
    snapshot = (await rpc.engine.SaveSnapshot(saving)).snapshot
    restored = await restore(rpc, snapshot.id)
    drop = engine_pb.DropSnapshotsRequest(snapshot_ids=[snapshot.id, "another"])
    dropped = await rpc.engine.DropSnapshots(drop)
    error = await call_error(restore(rpc, snapshot.id))

    assert snapshot.num_tokens == answer.accepted.prompt_tokens + NUM_MORE - 1
    assert list(restored.output_token_ids) == answer.tokens[0]
    assert dropped.num_dropped == 1
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "SNAPSHOT_NOT_FOUND")


INVALID_REQUESTS: Mapping[str, tuple[str, Any, str]] = {
    "nothing to save": ("SaveSnapshot", engine_pb.SaveSnapshotRequest(), "MISSING_FIELD"),
    "a negative choice": (
        "SaveSnapshot",
        engine_pb.SaveSnapshotRequest(request_id="r", index=-1),
        "OUT_OF_RANGE",
    ),
    "an unknown request": (
        "SaveSnapshot",
        engine_pb.SaveSnapshotRequest(request_id="unknown"),
        "STATE_NOT_FOUND",
    ),
    "nothing to restore": ("RestoreSnapshot", engine_pb.RestoreSnapshotRequest(), "MISSING_FIELD"),
    "a path": (
        "RestoreSnapshot",
        engine_pb.RestoreSnapshotRequest(snapshot_id="../../etc/passwd"),
        "SNAPSHOT_NOT_FOUND",
    ),
    "too many": (
        "DropSnapshots",
        engine_pb.DropSnapshotsRequest(snapshot_ids=["x"] * 1001),
        "TOO_LONG",
    ),
}


@pytest.mark.parametrize("case", INVALID_REQUESTS)
async def test_each_invalid_request_has_its_reason(rpc: Rpc, case: str) -> None:
    """Without side effects."""
    method, request, reason = INVALID_REQUESTS[case]
    error = await call_error(getattr(rpc.engine, method)(request))

    assert error.reason == reason
