"""Builders of snapshots and snapshot files."""

import os
from array import array
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from inference_svc.engine.engine import Engine
from inference_svc.engine.saved_state import Origin, SavedPrefix
from inference_svc.snapshots.cell_blocks import BlockFolder
from inference_svc.snapshots.file_format import SnapshotReader, write
from inference_svc.snapshots.snapshot import Fingerprint, RestoreTarget, Snapshot

SECRET = bytes(range(100, 132))
FINGERPRINT = Fingerprint("llama", "d1", "f16/f16", "1.2.3")
TARGET = RestoreTarget(FINGERPRINT, frozenset(), slot_tokens=64)
NO_BLOCKS = BlockFolder(Path(os.devnull))
SNAPSHOT_ID = f"snap_{'a1' * 12}"


def copy_block(block: bytes, into: memoryview) -> None:
    """Read a block from memory, as `join_blocks` does from files."""
    into[:] = block


def make_snapshot(
    snapshot_id: str = SNAPSHOT_ID, state_bytes: int = 40, **changes: Any
) -> Snapshot:
    """A small sequence; `changes` are fields of its origin, or of the snapshot itself."""
    origin = Origin(
        request_id="r",
        choice=1,
        project="p",
        tokens=array("i", [5, 6, 7, 8]),
        num_prompt=3,
        recipe='{"seed": 1}',
        hidden=(3.25,),
    )
    origin_changes = {key: changes.pop(key) for key in list(changes) if hasattr(origin, key)}
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        created_at=1e9,
        model="m",
        fingerprint=FINGERPRINT,
        key=b"project",
        num_computed=3,
        whole=False,
        origin=replace(origin, **origin_changes),
        state_bytes=state_bytes,
    )
    return replace(snapshot, **changes)


def make_snapshot_file(snapshot: Snapshot, state: bytes, secret: bytes = SECRET) -> bytes:
    file = BytesIO()
    write(file, snapshot, bytearray(state), secret)
    return file.getvalue()


def read(
    data: bytes, snapshot_id: str = SNAPSHOT_ID, secret: bytes = SECRET
) -> tuple[Snapshot, bytes]:
    """Read a file's snapshot and state. Raises as `SnapshotReader`."""
    reader = SnapshotReader(BytesIO(data), len(data), snapshot_id, secret, NO_BLOCKS)
    return reader.snapshot, bytes(reader.read_state())


def write_and_read(prefix: SavedPrefix, snapshot_id: str = SNAPSHOT_ID) -> SavedPrefix:
    """Write a saved sequence to a file and read it as another process would."""
    if prefix.origin is None:
        raise ValueError("the prefix has no origin")
    snapshot = Snapshot(
        snapshot_id,
        1e9,
        "m",
        FINGERPRINT,
        prefix.key,
        len(prefix.tokens),
        prefix.min_tokens > 0,
        prefix.origin,
        len(prefix.state),
    )
    copy, state = read(make_snapshot_file(snapshot, bytes(prefix.state)), snapshot_id)
    return copy.saved_prefix(bytearray(state), prefix.min_tokens)


def saved_output(prefix: SavedPrefix) -> Sequence[int]:
    if prefix.origin is None:
        raise ValueError("the prefix has no origin")
    return prefix.origin.tokens[prefix.origin.num_prompt :]


def save_prefix(engine: Engine, request_id: str = "", choice: int = 0) -> SavedPrefix:
    prefix = engine.snapshot(request_id, choice)
    if prefix is None:
        raise ValueError("the engine has no such sequence")
    return prefix
