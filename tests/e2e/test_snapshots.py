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
from tests.support.gguf_patch import copy_with_template
from tests.support.rpc import Answer, RichError, Rpc, connect, gather, options, parse_error
from tests.support.services import run_inference

pytestmark = pytest.mark.e2e

TEXT = "Tell me of the road over the hills, and of those who walk it. " * 3
CUT, MORE = 15, 40
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
    asked = options(sampling=SAMPLING, stopping=stopping, output={"token_ids": True}, **settings)
    return pb.GenerateRequest(text=TEXT, options=asked)


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
        if not snapshot.id and len(answer.tokens[0]) >= CUT:
            saving = engine_pb.SaveSnapshotRequest(request_id=answer.accepted.request_id)
            snapshot = (await rpc.engine.SaveSnapshot(saving)).snapshot
        total = answer.accepted.prompt_tokens + len(answer.tokens[0])
        if snapshot.id and total > snapshot.num_tokens + MORE:
            break
    stream.cancel()
    return Saved(snapshot, answer)


async def restore(rpc: Rpc, snapshot_id: str) -> engine_pb.RestoreSnapshotResponse:
    """Restore a snapshot."""
    return await rpc.engine.RestoreSnapshot(
        engine_pb.RestoreSnapshotRequest(snapshot_id=snapshot_id)
    )


async def restore_failure(rpc: Rpc, snapshot_id: str) -> RichError:
    """Return the error of restoring a snapshot."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await restore(rpc, snapshot_id)
    return parse_error(failure.value)


@pytest.mark.timeout(90)  # three servers in sequence
async def test_a_sequence_continues_on_another_server(tmp_path: Path) -> None:
    """With another number of slots, identically. A damaged snapshot and one of another model are
    refused."""
    with run_inference(tmp_path, {"engine.slots": 2}) as service:
        async with connect(service.target) as rpc:
            snapshot, whole = await save_midway(rpc)
            load = (await rpc.engine.GetLoad(engine_pb.GetLoadRequest())).load

    file = tmp_path / "data" / "snapshots" / f"{snapshot.id}.snapshot"
    assert snapshot.request_id == whole.accepted.request_id
    assert (load.num_snapshot_files, load.snapshot_file_bytes) == (1, file.stat().st_size)

    with run_inference(tmp_path, {"engine.slots": 3}) as service:
        async with connect(service.target) as rpc:
            back = await restore(rpc, snapshot.id)
            told = list(back.output_token_ids)
            choice = generation_pb2.ResumedChoice(output_token_ids=told, snapshot_id=snapshot.id)
            going_on = story_request(len(told) + MORE, resume=[choice])
            rest = await gather(rpc.inference.Generate(going_on))
            data = bytearray(file.read_bytes())
            file.write_bytes(data[:-1])
            truncated = await restore_failure(rpc, snapshot.id)
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
            altered = await restore_failure(rpc, snapshot.id)
            data[len(data) // 2] ^= 1
            file.write_bytes(data)

    assert back.snapshot == snapshot
    assert len(back.prompt_token_ids) == whole.accepted.prompt_tokens
    assert len(told) >= CUT
    assert len(rest.tokens[0]) == MORE
    assert [*told, *rest.tokens[0]] == whole.tokens[0][: len(told) + MORE]
    usage = rest.done.usage
    assert (usage.cached_tokens, usage.cache_source) == (
        whole.accepted.prompt_tokens,
        generation_pb2.CACHE_SOURCE_DISK,
    )
    assert (truncated.reason, truncated.metadata["fault"]) == ("SNAPSHOT_CORRUPT", "truncated")
    assert (altered.reason, altered.metadata["fault"]) == ("SNAPSHOT_CORRUPT", "altered")

    other = copy_with_template(BUNDLED_PATH, tmp_path / "other.gguf", "{{ messages[0].content }}")
    with run_inference(tmp_path, {"models": [str(other)]}) as service:
        async with connect(service.target) as rpc:
            foreign = await restore_failure(rpc, snapshot.id)

    assert foreign.code == grpc.StatusCode.FAILED_PRECONDITION
    assert (foreign.reason, foreign.metadata["aspect"]) == ("SNAPSHOT_INCOMPATIBLE", "model")
    assert foreign.metadata["found"] == snapshot.model_digest


async def test_a_kept_sequence_is_saved_and_dropped_later(rpc: Rpc) -> None:
    """A sequence that ended with `cache.keep` can be saved until it is dropped."""
    keep = generation_pb2.CacheOptions(keep=True)
    answer = await gather(rpc.inference.Generate(story_request(MORE, cache=keep)))
    saving = engine_pb.SaveSnapshotRequest(request_id=answer.accepted.request_id)
    snapshot = (await rpc.engine.SaveSnapshot(saving)).snapshot
    back = await restore(rpc, snapshot.id)
    drop = engine_pb.DropSnapshotsRequest(snapshot_ids=[snapshot.id, "another"])
    dropped = await rpc.engine.DropSnapshots(drop)
    gone = await restore_failure(rpc, snapshot.id)

    assert snapshot.num_tokens == answer.accepted.prompt_tokens + MORE - 1
    assert list(back.output_token_ids) == answer.tokens[0]
    assert dropped.num_dropped == 1
    assert (gone.code, gone.reason) == (grpc.StatusCode.NOT_FOUND, "SNAPSHOT_NOT_FOUND")


BAD: Mapping[str, tuple[str, Any, str]] = {
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


@pytest.mark.parametrize("case", BAD)
async def test_each_invalid_request_has_its_reason(rpc: Rpc, case: str) -> None:
    """Without side effects."""
    method, request, reason = BAD[case]
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await getattr(rpc.engine, method)(request)

    assert parse_error(failure.value).reason == reason
