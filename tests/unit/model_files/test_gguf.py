"""Reading GGUF headers: values that are stored, skipped and refused."""

import ctypes
import struct
from pathlib import Path

import llama_cpp
import pytest

from inference_svc.models.sources import BUNDLED_PATH
from model_files.ggml_types import REMOVED_TYPES, TENSOR_LAYOUTS
from model_files.gguf import (
    MAX_KEPT_STRING_BYTES,
    GgufHeader,
    ModelFileInvalid,
    Skipped,
    read_header,
)
from tests.support.gguf_files import F32Tensor, Signed, gguf_bytes, text


def parse(tmp_path: Path, data: bytes, **options: bool) -> GgufHeader:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return read_header(path, **options)


def parse_error(tmp_path: Path, data: bytes) -> str:
    with pytest.raises(ModelFileInvalid) as raised:
        parse(tmp_path, data)
    return raised.value.problem


def test_the_header_of_the_demo_model_is_read() -> None:
    """Architecture, parameters, layers and vocabulary."""
    header = read_header(BUNDLED_PATH)

    assert header.text("general.architecture") == "llama"
    assert header.num_parameters == 4_066_560
    assert header.integer("llama.block_count") == 6
    assert header.length("tokenizer.ggml.tokens") == 2048


def test_only_small_arrays_of_numbers_are_stored(tmp_path: Path) -> None:
    """Arrays of strings and large arrays are skipped; their lengths are known."""
    data = gguf_bytes({"tokens": ["a"] * 70_000, "heads": [4, 8], "big": [1] * 5000})
    header = parse(tmp_path, data)

    assert header.metadata["tokens"] == Skipped(70_000)
    assert header.integers("heads") == (4, 8)
    assert header.metadata["big"] == Skipped(5000)


def test_version_2_is_read_like_version_3(tmp_path: Path) -> None:
    """Both have the same layout."""
    metadata = {"a": 1, "b": "x", "c": True, "d": 2**40}
    header = parse(tmp_path, gguf_bytes(metadata, version=2))

    assert header.metadata == metadata


def test_tensors_are_returned_on_request(tmp_path: Path) -> None:
    """With names, shapes, offsets and sizes."""
    data = gguf_bytes({}, [F32Tensor("a", (8, 2)), F32Tensor("b", (4,))])
    header = parse(tmp_path, data, keep_tensors=True)

    assert [(t.name, t.shape, t.offset, t.size_bytes) for t in header.tensors] == [
        ("a", (8, 2), 0, 64),
        ("b", (4,), 64, 16),
    ]
    assert header.num_parameters == 20


def test_reading_a_string_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    """It was not stored. The error names the key."""
    template = "x" * (MAX_KEPT_STRING_BYTES + 1)
    header = parse(tmp_path, gguf_bytes({"tokenizer.chat_template": template}))

    with pytest.raises(ModelFileInvalid, match=r"tokenizer\.chat_template is too long"):
        header.text("tokenizer.chat_template")


@pytest.mark.parametrize("count", [2**63, 70_000])
def test_counts_above_the_limit_are_refused(tmp_path: Path, count: int) -> None:
    """Before the entries are read."""
    assert "at most 65536" in parse_error(tmp_path, gguf_bytes({}, num_metadata=count))
    assert "at most 65536" in parse_error(tmp_path, gguf_bytes({}, num_tensors=count))


def test_counts_beyond_the_file_are_refused(tmp_path: Path) -> None:
    """The rest of the file is too short for them."""
    assert "too short" in parse_error(tmp_path, gguf_bytes({}, num_metadata=1000))
    assert "too short" in parse_error(tmp_path, gguf_bytes({}, num_tensors=1000))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "not a GGUF file"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 3), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "version 99"),
    ],
)
def test_files_that_are_not_supported_are_refused(
    tmp_path: Path, data: bytes, expected: str
) -> None:
    """Other formats, other versions, big-endian and truncated files."""
    assert expected in parse_error(tmp_path, data)


def test_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    """It is unclear which value llama.cpp uses."""
    entry = text("a.key") + struct.pack("<II", 4, 1)
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry + entry + bytes(64)

    assert "duplicate key" in parse_error(tmp_path, data)


def test_the_depth_of_nested_arrays_is_limited(tmp_path: Path) -> None:
    """They cannot exhaust the stack."""
    nested = struct.pack("<I", 9) + b"".join(struct.pack("<IQ", 9, 1) for _ in range(5000))
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + nested + bytes(64)

    assert "too deeply" in parse_error(tmp_path, data)


def tensor_file(name: bytes, shape: tuple[int, ...], tensor_type: int, offset: int) -> bytes:
    info = text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, tensor_type, offset)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + info + bytes(4096)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (tensor_file(b"t", (1 << 40,), 0, 0), "truncated"),
        (tensor_file(b"t", (8,), 0, 4096), "truncated"),
        (tensor_file(b"t", (8,), 0, 1 << 40), "is beyond its end"),
        (tensor_file(b"t", (8,), 0, 7), "not aligned"),
        (tensor_file(b"t", (0,), 0, 0), "impossible shape"),
        (tensor_file(b"t", (1 << 32, 1 << 32), 0, 0), "impossible shape"),
        (tensor_file(b"t", (33,), 8, 0), "whole blocks of q8_0"),
        (tensor_file(b"t", (32,), 4, 0), "removed"),
        (tensor_file(b"t", (1, 1, 1, 1, 1), 0, 0), "5 dimensions"),
        (tensor_file(b"t" * 300, (8,), 0, 0), "300 bytes"),
        (tensor_file(b"\xff", (8,), 0, 0), "not valid UTF-8"),
    ],
)
def test_invalid_tensors_are_refused(tmp_path: Path, data: bytes, expected: str) -> None:
    """By shape, type, offset, name and the size of the file."""
    assert expected in parse_error(tmp_path, data)


def test_an_unknown_tensor_type_is_accepted(tmp_path: Path) -> None:
    """A later llama.cpp may support it."""
    assert parse(tmp_path, tensor_file(b"t", (7,), 999, 0)).num_parameters == 7


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    """With the reason of the operating system."""
    with pytest.raises(ModelFileInvalid, match="cannot be read: no such file"):
        read_header(tmp_path / "none.gguf")


@pytest.mark.parametrize("alignment", [0, 3, 2**21, "x"])
def test_an_invalid_alignment_is_refused(tmp_path: Path, alignment: object) -> None:
    """It must be a power of two within the limit."""
    assert "alignment" in parse_error(tmp_path, gguf_bytes({"general.alignment": alignment}))


@pytest.mark.parametrize("value", [Signed(-1), 2**32 - 1])
def test_minus_one_is_an_unset_integer(tmp_path: Path, value: object) -> None:
    """llama.cpp saves it, signed or unsigned; other negative values are invalid."""
    header = parse(tmp_path, gguf_bytes({"n": value, "l": value, "other": Signed(-2)}))

    assert header.integer("n") is None
    assert header.integers("l") is None
    with pytest.raises(ModelFileInvalid, match="other is not an integer"):
        header.integer("other")


def test_values_of_the_wrong_type_are_reported_with_their_key(tmp_path: Path) -> None:
    header = parse(tmp_path, gguf_bytes({"n": "text", "t": 5, "l": [1.5]}))

    with pytest.raises(ModelFileInvalid, match="n is not an integer"):
        header.integer("n")
    with pytest.raises(ModelFileInvalid, match="t is not a string"):
        header.text("t")
    with pytest.raises(ModelFileInvalid, match="l has values other"):
        header.integers("l")


def test_the_tensor_layouts_are_those_of_the_installed_llama_cpp() -> None:
    """Names, block sizes and removed types."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    library = ctypes.CDLL(str(next(folder.glob("libggml-base.*"))))
    library.ggml_type_name.restype = ctypes.c_char_p
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_blck_size.restype = ctypes.c_int64

    for type_id, layout in TENSOR_LAYOUTS.items():
        assert layout == (
            library.ggml_type_name(type_id).decode(),
            library.ggml_blck_size(type_id),
            library.ggml_type_size(type_id),
        )
    assert all(library.ggml_type_size(type_id) == 0 for type_id in REMOVED_TYPES)
