"""The file format of snapshots: little-endian, digests are BLAKE2b with the installation's key.

    head         magic, format, mark of the installation's key, sizes of the parts
    description  JSON
    tokens       prompt and output, 32 bits each
    digest       of all above
    state        the KV cache, as llama.cpp writes it
    digest       of the digest above and the state

Sizes are bounded before anything is read and digests checked before anything is used.
"""

import hashlib
import hmac
import json
import struct
from array import array
from io import BufferedIOBase
from typing import Any

from inference_svc.engine.saved_state import Origin
from inference_svc.snapshots.snapshot import Fingerprint, Snapshot
from svc_kit.errors import SnapshotCorrupt, SnapshotIncompatible

FORMAT = 1
MAX_DESCRIPTION_BYTES = 16 << 20
MAX_TOKENS = 4 << 20
DIGEST_BYTES = 32
_MAGIC = b"CORRALSN"
_HEAD = struct.Struct("<8sI8sIIQ")


def file_bytes(snapshot: Snapshot) -> int:
    """The size of a snapshot's file."""
    description, tokens = _description(snapshot), snapshot.origin.tokens
    return _HEAD.size + len(description) + 4 * len(tokens) + snapshot.state_bytes + 2 * DIGEST_BYTES


def write(file: BufferedIOBase, snapshot: Snapshot, state: bytearray, secret: bytes) -> None:
    """Write a whole snapshot."""
    description, tokens = _description(snapshot), snapshot.origin.tokens
    sizes = (len(description), len(tokens), len(state))
    head = _HEAD.pack(_MAGIC, FORMAT, _mark(secret), *sizes)
    digest = hashlib.blake2b(key=secret, digest_size=DIGEST_BYTES)
    for part in (head, description, tokens.tobytes()):
        digest.update(part)
        file.write(part)
    first = digest.digest()
    file.write(first)
    file.write(state)
    file.write(_state_digest(first, state, secret))


class SnapshotReader:
    """A snapshot's open file of `size` bytes, checked as far as it is read."""

    def __init__(self, file: BufferedIOBase, size: int, snapshot_id: str, secret: bytes) -> None:
        """Read the description. Raises `SnapshotCorrupt`, or `SnapshotIncompatible` for a format
        of another release."""
        self._file = file
        self._id = snapshot_id
        self._secret = secret
        head = file.read(_HEAD.size)
        description_bytes, num_tokens, self._state_bytes = self._sizes(head, size)
        description = self._read(description_bytes)
        tokens = self._read(4 * num_tokens)
        digest = hashlib.blake2b(head, key=secret, digest_size=DIGEST_BYTES)
        digest.update(description)
        digest.update(tokens)
        self._digest = digest.digest()
        self._compare(self._digest)
        self.snapshot = self._decode(description, array("i", tokens))

    def state(self) -> bytearray:
        """Read the cells. Raises `SnapshotCorrupt`."""
        state = bytearray(self._state_bytes)
        if self._file.readinto(state) != len(state):
            raise self._corrupt("truncated")
        self._compare(_state_digest(self._digest, state, self._secret))
        return state

    def _sizes(self, head: bytes, size: int) -> tuple[int, int, int]:
        if not _MAGIC.startswith(head[: len(_MAGIC)]):
            raise self._corrupt("foreign")
        if len(head) < _HEAD.size:
            raise self._corrupt("truncated")
        _, version, mark, description_bytes, num_tokens, state_bytes = _HEAD.unpack(head)
        if version != FORMAT:
            raise SnapshotIncompatible(
                snapshot=self._id, aspect="format", expected=str(FORMAT), found=str(version)
            )
        if not hmac.compare_digest(mark, _mark(self._secret)):
            raise self._corrupt("foreign")
        if description_bytes > MAX_DESCRIPTION_BYTES or num_tokens > MAX_TOKENS:
            raise self._corrupt("altered")
        whole = _HEAD.size + description_bytes + 4 * num_tokens + state_bytes + 2 * DIGEST_BYTES
        if size != whole:
            raise self._corrupt("truncated" if size < whole else "altered")
        return description_bytes, num_tokens, state_bytes

    def _decode(self, description: bytes, tokens: "array[int]") -> Snapshot:
        try:
            snapshot = _snapshot(json.loads(description), tokens, self._state_bytes)
        except (KeyError, TypeError, ValueError) as problem:
            raise self._corrupt("altered") from problem
        if snapshot.snapshot_id != self._id:
            raise self._corrupt("altered")  # a whole file in the place of another one
        return snapshot

    def _compare(self, expected: bytes) -> None:
        if not hmac.compare_digest(self._read(DIGEST_BYTES), expected):
            raise self._corrupt("altered")

    def _read(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise self._corrupt("truncated")
        return data

    def _corrupt(self, fault: str) -> SnapshotCorrupt:
        return SnapshotCorrupt(snapshot=self._id, fault=fault)


def _mark(secret: bytes) -> bytes:
    """A mark that identifies a key without revealing it."""
    return hashlib.blake2b(b"mark", key=secret, digest_size=8).digest()


def _state_digest(first: bytes, state: bytearray, secret: bytes) -> bytes:
    digest = hashlib.blake2b(first, key=secret, digest_size=DIGEST_BYTES)
    digest.update(state)
    return digest.digest()


def _description(snapshot: Snapshot) -> bytes:
    origin, fingerprint = snapshot.origin, snapshot.fingerprint
    return json.dumps(
        {
            "id": snapshot.snapshot_id,
            "created_at": snapshot.created_at,
            "model": snapshot.model,
            "fingerprint": [
                fingerprint.architecture,
                fingerprint.model,
                fingerprint.cache,
                fingerprint.llama_cpp,
            ],
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
    ).encode()


def _snapshot(said: dict[str, Any], tokens: "array[int]", state_bytes: int) -> Snapshot:
    origin = Origin(
        request_id=said["request_id"],
        choice=said["choice"],
        project=said["project"],
        tokens=tokens,
        num_prompt=said["num_prompt"],
        recipe=said["recipe"],
        hidden=tuple(said["hidden"]),
        adapters=tuple((digest, scale) for digest, scale in said["adapters"]),
    )
    return Snapshot(
        snapshot_id=said["id"],
        created_at=said["created_at"],
        model=said["model"],
        fingerprint=Fingerprint(*said["fingerprint"]),
        key=bytes.fromhex(said["key"]),
        num_computed=said["num_computed"],
        whole=said["whole"],
        origin=origin,
        state_bytes=state_bytes,
        kept_for=said.get("kept_for", ""),  # there was none in the first files
    )
