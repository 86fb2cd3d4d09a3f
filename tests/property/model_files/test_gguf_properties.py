"""Damaged model files: they raise ModelFileInvalid only, and need little memory."""

import os
import tempfile
from functools import cache, partial
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.models.metadata import describe_model
from inference_svc.models.sources import BUNDLED_PATH
from model_files.gguf import ModelFileInvalid
from tests.support.examples import examples
from tests.support.memory import peak_bytes

HEADER_BYTES = 96 * 1024
MEMORY_BOUND_BYTES = 8 << 20

# The keys are at the start, the tensors at the end of the header's 63,298 bytes.
offsets = st.integers(0, 2_000) | st.integers(0, 63_297) | st.integers(60_000, 63_297)
flips = st.lists(st.tuples(offsets, st.integers(0, 255)), max_size=12)
cuts = st.none() | st.integers(0, HEADER_BYTES) | st.integers(0, BUNDLED_PATH.stat().st_size)


@cache
def demo_header() -> bytes:
    with BUNDLED_PATH.open("rb") as file:
        return file.read(HEADER_BYTES)


def damaged_header(changes: list[tuple[int, int]]) -> bytes:
    header = bytearray(demo_header())
    for offset, byte in changes:
        header[offset] = byte
    return bytes(header)


def describe(header: bytes, file_bytes: int) -> None:
    """Describe a sparse file of this size that starts with `header`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(header)
        os.truncate(path, file_bytes)
        try:
            describe_model(path, "model")
        except ModelFileInvalid:
            return


@settings(max_examples=examples(150), deadline=None)
@given(flips, cuts)
def test_damaged_headers_raise_nothing_but_model_file_invalid(
    changes: list[tuple[int, int]], cut: int | None
) -> None:
    """Byte flips and truncations of a real header."""
    describe(damaged_header(changes), BUNDLED_PATH.stat().st_size if cut is None else cut)


@settings(max_examples=examples(40), deadline=None)
@given(flips.filter(bool), st.integers(BUNDLED_PATH.stat().st_size, 1 << 40))
def test_memory_is_bounded_for_large_files(changes: list[tuple[int, int]], file_bytes: int) -> None:
    """With a damaged header, up to a terabyte."""
    header = damaged_header(changes)

    assert peak_bytes(partial(describe, header, file_bytes)) < MEMORY_BOUND_BYTES


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=2000))
def test_random_bytes_after_the_magic_are_refused(data: bytes) -> None:
    describe(b"GGUF\x03\x00\x00\x00" + data, 8 + len(data))
