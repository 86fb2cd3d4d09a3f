"""The file format of snapshots: little-endian, digests are BLAKE2b with the installation's key.

    head      magic, format, key id, sizes of the parts
    metadata  JSON
    tokens    prompt and output, 32 bits each
    digest    of all above
    state     the KV cells, as serialized by llama.cpp; in format 2 without those in blocks
    digest    of the digest above and the state

Sizes are checked before anything is read, digests before anything is used.
"""

import hashlib
import hmac
import json
import struct
from array import array
from dataclasses import astuple
from functools import partial
from io import BufferedIOBase
from typing import Any

from inference_svc.engine.saved_state import CellArray, CellLayout, Origin, allocate_state
from inference_svc.snapshots.cell_blocks import BlockDamaged, BlockFolder, CellBlocks, join_blocks
from inference_svc.snapshots.snapshot import Fingerprint, Snapshot
from svc_kit.errors import SnapshotCorrupt, SnapshotIncompatible

FORMAT = 2
_FORMAT_WITHOUT_BLOCKS = 1
MAX_METADATA_BYTES = 16 << 20
MAX_TOKENS = 4 << 20
DIGEST_BYTES = 32
_MAGIC = b"CORRALSN"
_HEAD = struct.Struct("<8sI8sIIQ")


def file_bytes(snapshot: Snapshot) -> int:
    """Size of a snapshot's file in bytes."""
    return _file_bytes(
        len(_encode_metadata(snapshot)), len(snapshot.origin.tokens), snapshot.state_bytes
    )


def write(file: BufferedIOBase, snapshot: Snapshot, state: bytearray, secret: bytes) -> None:
    """Write a snapshot and its KV cells; `secret` is the key of the digests."""
    metadata, version = _encode_metadata(snapshot), FORMAT
    if snapshot.blocks is None:
        version = _FORMAT_WITHOUT_BLOCKS
    write_parts(file, version, metadata, snapshot.origin.tokens, state, secret)


def write_parts(
    file: BufferedIOBase,
    version: int,
    metadata: bytes,
    tokens: "array[int]",
    state: bytearray,
    secret: bytes,
) -> None:
    """Write a file of a format from encoded metadata."""
    sizes = (len(metadata), len(tokens), len(state))
    head = _HEAD.pack(_MAGIC, version, _key_id(secret), *sizes)
    digest = hashlib.blake2b(key=secret, digest_size=DIGEST_BYTES)
    for part in (head, metadata, tokens.tobytes()):
        digest.update(part)
        file.write(part)
    first = digest.digest()
    file.write(first)
    file.write(state)
    file.write(_state_digest(first, state, secret))


class SnapshotReader:
    """Reads and verifies the open file of a snapshot, `size` bytes long, and its blocks."""

    def __init__(
        self,
        file: BufferedIOBase,
        size: int,
        snapshot_id: str,
        secret: bytes,
        folder: BlockFolder,
    ) -> None:
        """Read the metadata. Raises `SnapshotCorrupt`, or `SnapshotIncompatible` if the file has
        the format of another release."""
        self._file = file
        self._folder = folder
        self._id = snapshot_id
        self._secret = secret
        head = file.read(_HEAD.size)
        metadata_bytes, num_tokens, self._state_bytes = self._parse_head(head, size)
        metadata = self._read(metadata_bytes)
        tokens = self._read(4 * num_tokens)
        digest = hashlib.blake2b(head, key=secret, digest_size=DIGEST_BYTES)
        digest.update(metadata)
        digest.update(tokens)
        self._digest = digest.digest()
        self._check_digest(self._digest)
        self.snapshot = self._decode(metadata, array("i", tokens))

    def read_state(self) -> bytearray:
        """Read the KV cells. Raises `SnapshotCorrupt`."""
        state = allocate_state(self._state_bytes)
        if self._file.readinto(state) != len(state):
            raise self._corrupt("truncated")
        self._check_digest(_state_digest(self._digest, state, self._secret))
        blocks = self.snapshot.blocks
        return state if blocks is None else self._join_blocks(state, blocks)

    def _join_blocks(self, rest: bytearray, blocks: CellBlocks) -> bytearray:
        key, secret = self.snapshot.key, self._secret
        try:
            read = partial(self._folder.read_into, key=key, secret=secret)
            return join_blocks(rest, blocks.names, read, blocks.layout)
        except (BlockDamaged, ValueError) as problem:
            raise self._corrupt("altered") from problem

    def _parse_head(self, head: bytes, size: int) -> tuple[int, int, int]:
        """Return the sizes of metadata (bytes), tokens and state (bytes)."""
        if not _MAGIC.startswith(head[: len(_MAGIC)]):
            raise self._corrupt("foreign")
        if len(head) < _HEAD.size:
            raise self._corrupt("truncated")
        _, version, key_id, metadata_bytes, num_tokens, state_bytes = _HEAD.unpack(head)
        if version not in (FORMAT, _FORMAT_WITHOUT_BLOCKS):
            raise SnapshotIncompatible(
                snapshot=self._id, aspect="format", expected=str(FORMAT), found=str(version)
            )
        if not hmac.compare_digest(key_id, _key_id(self._secret)):
            raise self._corrupt("foreign")
        if metadata_bytes > MAX_METADATA_BYTES or num_tokens > MAX_TOKENS:
            raise self._corrupt("altered")
        expected = _file_bytes(metadata_bytes, num_tokens, state_bytes)
        if size != expected:
            raise self._corrupt("truncated" if size < expected else "altered")
        return metadata_bytes, num_tokens, state_bytes

    def _decode(self, metadata: bytes, tokens: "array[int]") -> Snapshot:
        try:
            snapshot = _decode_metadata(json.loads(metadata), tokens, self._state_bytes)
        except (KeyError, TypeError, ValueError) as problem:
            raise self._corrupt("altered") from problem
        if snapshot.snapshot_id != self._id:
            raise self._corrupt("altered")  # an intact file under the name of another
        return snapshot

    def _check_digest(self, expected: bytes) -> None:
        if not hmac.compare_digest(self._read(DIGEST_BYTES), expected):
            raise self._corrupt("altered")

    def _read(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise self._corrupt("truncated")
        return data

    def _corrupt(self, fault: str) -> SnapshotCorrupt:
        return SnapshotCorrupt(snapshot=self._id, fault=fault)


def _file_bytes(metadata_bytes: int, num_tokens: int, state_bytes: int) -> int:
    return _HEAD.size + metadata_bytes + 4 * num_tokens + state_bytes + 2 * DIGEST_BYTES


def _key_id(secret: bytes) -> bytes:
    """Identifies a key without revealing it."""
    return hashlib.blake2b(b"mark", key=secret, digest_size=8).digest()


def _state_digest(first: bytes, state: bytearray, secret: bytes) -> bytes:
    digest = hashlib.blake2b(first, key=secret, digest_size=DIGEST_BYTES)
    digest.update(state)
    return digest.digest()


def _encode_metadata(snapshot: Snapshot) -> bytes:
    origin = snapshot.origin
    blocks = {} if snapshot.blocks is None else {"blocks": snapshot.blocks}
    metadata = {
        "id": snapshot.snapshot_id,
        "created_at": snapshot.created_at,
        "model": snapshot.model,
        "fingerprint": astuple(snapshot.fingerprint),
        "key": snapshot.key.hex(),
        "num_computed": snapshot.num_computed,
        "whole": snapshot.whole,
        "request_id": origin.request_id,
        "choice": origin.choice,
        "project": origin.project,
        "num_prompt": origin.num_prompt,
        "recipe": origin.recipe,
        "hidden": origin.hidden,
        "adapters": origin.adapters,
        "kept_for": snapshot.kept_for,
    }
    return json.dumps(metadata | blocks).encode()


def _decode_metadata(metadata: dict[str, Any], tokens: "array[int]", state_bytes: int) -> Snapshot:
    origin = Origin(
        request_id=metadata["request_id"],
        choice=metadata["choice"],
        project=metadata["project"],
        tokens=tokens,
        num_prompt=metadata["num_prompt"],
        recipe=metadata["recipe"],
        hidden=tuple(metadata["hidden"]),
        adapters=tuple((digest, scale) for digest, scale in metadata["adapters"]),
    )
    return Snapshot(
        snapshot_id=metadata["id"],
        created_at=metadata["created_at"],
        model=metadata["model"],
        fingerprint=Fingerprint(*metadata["fingerprint"]),
        key=bytes.fromhex(metadata["key"]),
        num_computed=metadata["num_computed"],
        whole=metadata["whole"],
        origin=origin,
        state_bytes=state_bytes,
        kept_for=metadata.get("kept_for", ""),  # absent from files of the first release
        blocks=_decode_blocks(*metadata["blocks"]) if "blocks" in metadata else None,
    )


def _decode_blocks(names: list[str], layout: list[Any]) -> CellBlocks:
    num_cells, arrays = layout
    return CellBlocks(
        tuple(names), CellLayout(num_cells, tuple(CellArray(*array) for array in arrays))
    )
