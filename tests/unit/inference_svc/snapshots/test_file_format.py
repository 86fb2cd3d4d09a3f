"""Snapshots in files: what comes back, and every way in which a file may be wrong."""

import json
from dataclasses import replace

import pytest

from inference_svc.snapshots import file_format
from inference_svc.snapshots.file_format import MAX_DESCRIPTION_BYTES, file_bytes
from inference_svc.snapshots.snapshot import RestoreTarget
from svc_kit.errors import SnapshotCorrupt, SnapshotIncompatible
from tests.support.snapshots import FINGERPRINT, RECEIVER, SECRET, a_file, a_snapshot, read

STATE = bytes(range(40))


def _fault(data: bytes, **options: bytes) -> str:
    with pytest.raises(SnapshotCorrupt) as failure:
        read(data, **options)  # type: ignore[arg-type]
    return failure.value.fault


def test_a_snapshot_comes_back_as_it_was() -> None:
    """Every field, the tokens and the cells; its size is known beforehand."""
    snapshot = a_snapshot(hidden=(1.5, 0.1 + 0.2), adapters=(("d2", 0.5),), project="Prüf\n")
    data = a_file(snapshot, STATE)

    assert read(data) == (snapshot, STATE)
    assert len(data) == file_bytes(snapshot)


def test_every_truncation_is_found() -> None:
    """At every length."""
    data = a_file(a_snapshot(), STATE)

    assert {_fault(data[:length]) for length in range(len(data))} == {"truncated"}


def test_every_changed_byte_is_found_before_the_cells_are_used() -> None:
    """At every place: no flip reads as a snapshot, and what stands before the cells is checked
    without them."""
    data = a_file(a_snapshot(), STATE)
    for place in range(len(data)):
        for mask in (1, 0x80, 0xFF):
            changed = bytearray(data)
            changed[place] ^= mask
            with pytest.raises((SnapshotCorrupt, SnapshotIncompatible)):
                read(bytes(changed))


def test_what_is_no_snapshot_is_foreign() -> None:
    """Another program's file, and another installation's snapshot."""
    data = a_file(a_snapshot(), STATE)

    assert _fault(b"GGUF" + bytes(400)) == "foreign"
    assert _fault(data, secret=bytes(32)) == "foreign"


def test_a_snapshot_under_another_name_is_altered() -> None:
    """So is one with something behind it."""
    data = a_file(a_snapshot(), STATE)

    assert _fault(data, snapshot_id=f"snap_{'b' * 24}") == "altered"  # type: ignore[arg-type]
    assert _fault(data + b"x") == "altered"


@pytest.mark.parametrize("field", ["description", "tokens", "state"])
def test_sizes_that_a_file_claims_are_not_believed(field: str) -> None:
    """Nothing is read, or made room for, before they fit the file and their bounds."""
    data = bytearray(a_file(a_snapshot(), STATE))
    offset, value = {
        "description": (20, (MAX_DESCRIPTION_BYTES + 1).to_bytes(4, "little")),
        "tokens": (24, b"\xff" * 4),
        "state": (28, b"\xff" * 8),
    }[field]
    data[offset : offset + len(value)] = value

    assert _fault(bytes(data)) in ("truncated", "altered")


def test_a_format_of_another_release_is_named() -> None:
    """Both numbers, whatever else the file holds."""
    data = bytearray(a_file(a_snapshot(), STATE))
    data[8] = 9
    with pytest.raises(SnapshotIncompatible) as failure:
        read(bytes(data))

    error = failure.value
    assert (error.aspect, error.expected, error.found) == ("format", "1", "9")


@pytest.mark.parametrize("damage", ["{}", "[]", "nonsense", '{"fingerprint": 5}'])
def test_a_description_that_says_too_little_is_altered(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its digest is right: a defect of ours is an error too."""
    monkeypatch.setattr(file_format, "_description", lambda _: damage.encode())
    data = a_file(a_snapshot(), STATE)

    assert _fault(data) == "altered"


def test_a_snapshot_fits_where_it_was_made() -> None:
    """The baseline of the next test."""
    a_snapshot().check(RECEIVER)
    a_snapshot(adapters=(("d2", 0.5),)).check(RECEIVER._replace(adapters={"d2"}))


@pytest.mark.parametrize(
    ("receiver", "aspect", "found"),
    [
        (RECEIVER._replace(fingerprint=replace(FINGERPRINT, model="d9")), "model", "d1"),
        (RECEIVER._replace(fingerprint=replace(FINGERPRINT, cache="q8_0")), "cache", "f16/f16"),
        (RECEIVER._replace(fingerprint=replace(FINGERPRINT, llama_cpp="9")), "llama_cpp", "1.2.3"),
        (
            RECEIVER._replace(fingerprint=replace(FINGERPRINT, architecture="mamba")),
            "architecture",
            "llama",
        ),
        (RECEIVER._replace(slot_tokens=3), "context", "4 tokens or more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_misfit_is_named(receiver: RestoreTarget, aspect: str, found: str) -> None:
    """What it is, and what would be wanted."""
    with pytest.raises(SnapshotIncompatible) as failure:
        a_snapshot().check(receiver)

    assert (failure.value.aspect, failure.value.found) == (aspect, found)


def test_an_adapter_that_is_not_there_is_named() -> None:
    """By its digest."""
    with pytest.raises(SnapshotIncompatible) as failure:
        a_snapshot(adapters=(("d2", 0.5),)).check(RECEIVER)

    assert (failure.value.aspect, failure.value.found) == ("adapters", "d2")


def test_the_description_is_readable_without_its_tokens_or_texts() -> None:
    """Plain JSON, with no prompt in it."""
    data = a_file(a_snapshot(), STATE)
    said = json.loads(data[36 : 36 + int.from_bytes(data[20:24], "little")])

    assert said["request_id"] == "r"
    assert "tokens" not in said
    assert SECRET not in data
