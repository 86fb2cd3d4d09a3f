"""Round trips of snapshot files, and every kind of damage."""

import json
from array import array
from dataclasses import replace
from io import BytesIO

import pytest

from inference_svc.snapshots.file_format import FORMAT, MAX_METADATA_BYTES, file_bytes, write_parts
from inference_svc.snapshots.snapshot import RestoreTarget
from svc_kit.errors import SnapshotCorrupt, SnapshotIncompatible
from tests.support.snapshots import (
    FINGERPRINT,
    SECRET,
    TARGET,
    make_snapshot,
    make_snapshot_file,
    read,
)

STATE = bytes(range(40))


def _fault(data: bytes, **options: bytes) -> str:
    with pytest.raises(SnapshotCorrupt) as failure:
        read(data, **options)  # type: ignore[arg-type]
    return failure.value.fault


def test_a_snapshot_survives_a_round_trip() -> None:
    """Every field, the tokens and the cells; `file_bytes` predicts the size."""
    snapshot = make_snapshot(hidden=(1.5, 0.1 + 0.2), adapters=(("d2", 0.5),), project="Prüf\n")
    data = make_snapshot_file(snapshot, STATE)

    assert read(data) == (snapshot, STATE)
    assert len(data) == file_bytes(snapshot)


def test_every_truncation_is_detected() -> None:
    data = make_snapshot_file(make_snapshot(), STATE)

    assert {_fault(data[:length]) for length in range(len(data))} == {"truncated"}


def test_every_changed_byte_is_detected() -> None:
    """At every offset, with several bit masks."""
    data = make_snapshot_file(make_snapshot(), STATE)
    for offset in range(len(data)):
        for mask in (1, 0x80, 0xFF):
            changed = bytearray(data)
            changed[offset] ^= mask
            with pytest.raises((SnapshotCorrupt, SnapshotIncompatible)):
                read(bytes(changed))


def test_other_files_are_foreign() -> None:
    """A file of another program, and a snapshot of another installation."""
    data = make_snapshot_file(make_snapshot(), STATE)

    assert _fault(b"GGUF" + bytes(400)) == "foreign"
    assert _fault(data, secret=bytes(32)) == "foreign"


def test_a_snapshot_under_another_name_is_altered() -> None:
    """So is one with trailing bytes."""
    data = make_snapshot_file(make_snapshot(), STATE)

    assert _fault(data, snapshot_id=f"snap_{'b' * 24}") == "altered"  # type: ignore[arg-type]
    assert _fault(data + b"x") == "altered"


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (20, (MAX_METADATA_BYTES + 1).to_bytes(4, "little")),
        (24, b"\xff" * 4),
        (28, b"\xff" * 8),
    ],
    ids=["metadata", "tokens", "state"],
)
def test_the_sizes_in_the_head_are_validated(offset: int, value: bytes) -> None:
    """Against the size of the file and their limits, before anything is read or allocated."""
    data = bytearray(make_snapshot_file(make_snapshot(), STATE))
    data[offset : offset + len(value)] = value

    assert _fault(bytes(data)) in ("truncated", "altered")


def test_the_format_of_another_release_is_refused() -> None:
    """With both format numbers."""
    data = bytearray(make_snapshot_file(make_snapshot(), STATE))
    data[8] = 9
    with pytest.raises(SnapshotIncompatible) as failure:
        read(bytes(data))

    error = failure.value
    assert (error.aspect, error.expected, error.found) == ("format", "2", "9")


@pytest.mark.parametrize("damage", ["{}", "[]", "nonsense", '{"fingerprint": 5}'])
def test_incomplete_metadata_with_a_valid_digest_is_altered(damage: str) -> None:
    """A bug in the writer must not crash the reader."""
    file = BytesIO()
    write_parts(file, FORMAT, damage.encode(), array("i", [5, 6]), bytearray(STATE), SECRET)

    assert _fault(file.getvalue()) == "altered"


def test_a_snapshot_is_compatible_with_its_own_model() -> None:
    """The baseline of the next test."""
    make_snapshot().check_compatible(TARGET)
    make_snapshot(adapters=(("d2", 0.5),)).check_compatible(TARGET._replace(adapters={"d2"}))


@pytest.mark.parametrize(
    ("target", "aspect", "actual"),
    [
        (TARGET._replace(fingerprint=replace(FINGERPRINT, model="d9")), "model", "d1"),
        (TARGET._replace(fingerprint=replace(FINGERPRINT, cache="q8_0")), "cache", "f16/f16"),
        (TARGET._replace(fingerprint=replace(FINGERPRINT, llama_cpp="9")), "llama_cpp", "1.2.3"),
        (
            TARGET._replace(fingerprint=replace(FINGERPRINT, architecture="mamba")),
            "architecture",
            "llama",
        ),
        (TARGET._replace(slot_tokens=3), "context", "4 tokens or more"),
        (TARGET, "adapters", "d2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_incompatibility_is_named(target: RestoreTarget, aspect: str, actual: str) -> None:
    """The error has the aspect and the actual value; a missing adapter is named by its digest."""
    adapters = (("d2", 0.5),) if aspect == "adapters" else ()
    with pytest.raises(SnapshotIncompatible) as failure:
        make_snapshot(adapters=adapters).check_compatible(target)

    assert (failure.value.aspect, failure.value.found) == (aspect, actual)


def test_the_metadata_is_plain_json_without_tokens() -> None:
    """And without the key."""
    data = make_snapshot_file(make_snapshot(), STATE)
    metadata = json.loads(data[36 : 36 + int.from_bytes(data[20:24], "little")])

    assert metadata["request_id"] == "r"
    assert "tokens" not in metadata
    assert SECRET not in data
