"""Reading GGUF headers: what is kept, what is walked over, what is refused."""

import ctypes
import struct
from pathlib import Path

import llama_cpp
import pytest

from inference_svc.models.sources import BUNDLED_PATH
from model_files.ggml_types import REMOVED_TYPES, TENSOR_LAYOUTS
from model_files.gguf import (
    MAX_KEPT_STRING_BYTES,
    ModelFileInvalid,
    Skipped,
    read_header,
)
from tests.support.gguf_files import F32Tensor, gguf_bytes, text


def header_of(tmp_path: Path, data: bytes, **options: bool) -> object:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return read_header(path, **options)


def problem_of(tmp_path: Path, data: bytes) -> str:
    with pytest.raises(ModelFileInvalid) as raised:
        header_of(tmp_path, data)
    return raised.value.problem


def test_the_demo_model_says_what_its_makers_say() -> None:
    """The bundled file's header has the architecture and size that its README names."""
    header = read_header(BUNDLED_PATH)

    assert header.text("general.architecture") == "llama"
    assert header.num_parameters == 4_066_560
    assert header.integer("llama.block_count") == 6
    assert header.length("tokenizer.ggml.tokens") == 2048


def test_vocabularies_are_walked_over_and_small_number_arrays_are_kept(tmp_path: Path) -> None:
    """Texts in arrays are counted only; numbers per layer stay readable."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({"tokens": ["a"] * 70_000, "heads": [4, 8], "big": [1] * 5000}))

    header = read_header(path)

    assert header.metadata["tokens"] == Skipped(70_000)
    assert header.integers("heads") == (4, 8)
    assert header.metadata["big"] == Skipped(5000)


def test_version_2_is_read_as_version_3_is(tmp_path: Path) -> None:
    """Both versions have the same layout."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({"a": 1, "b": "x", "c": True, "d": 2**40}, version=2))

    header = read_header(path)

    assert (header.version, dict(header.metadata)) == (2, {"a": 1, "b": "x", "c": True, "d": 2**40})


def test_tensors_are_listed_when_asked_for(tmp_path: Path) -> None:
    """An adapter check needs names, shapes and sizes."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({}, [F32Tensor("a", (8, 2)), F32Tensor("b", (4,))]))

    header = read_header(path, keep_tensors=True)

    assert [(t.name, t.shape, t.offset, t.size_bytes) for t in header.tensors] == [
        ("a", (8, 2), 0, 64),
        ("b", (4,), 64, 16),
    ]
    assert header.num_parameters == 20


def test_an_overlong_text_is_not_kept_and_asking_for_it_is_an_error(tmp_path: Path) -> None:
    """A giant chat template costs no memory and is reported by name."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({"tokenizer.chat_template": "x" * (MAX_KEPT_STRING_BYTES + 1)}))

    header = read_header(path)

    with pytest.raises(ModelFileInvalid, match=r"tokenizer\.chat_template is too long"):
        header.text("tokenizer.chat_template")


@pytest.mark.parametrize("count", [2**63, 70_000])
def test_impossible_counts_are_refused_before_anything_is_read(tmp_path: Path, count: int) -> None:
    """A header that claims more entries than are allowed is refused."""
    assert "at most 65536" in problem_of(tmp_path, gguf_bytes({}, num_metadata=count))
    assert "at most 65536" in problem_of(tmp_path, gguf_bytes({}, num_tensors=count))


def test_counts_beyond_the_file_are_refused(tmp_path: Path) -> None:
    """A count that the rest of the file cannot hold is a lie."""
    assert "too short" in problem_of(tmp_path, gguf_bytes({}, num_metadata=1000))
    assert "too short" in problem_of(tmp_path, gguf_bytes({}, num_tensors=1000))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "not a GGUF file"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 3), "cut short"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "version 99"),
    ],
)
def test_what_is_not_gguf_is_named(tmp_path: Path, data: bytes, expected: str) -> None:
    """Other files, old versions and other machines' files each get their own words."""
    assert expected in problem_of(tmp_path, data)


def test_a_repeated_key_is_refused(tmp_path: Path) -> None:
    """Two values for one key leave open which one llama.cpp takes."""
    entry = text("a.key") + struct.pack("<II", 4, 1)
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry + entry + bytes(64)

    assert "twice" in problem_of(tmp_path, data)


def test_nested_arrays_are_bounded_in_depth(tmp_path: Path) -> None:
    """Arrays of arrays cannot exhaust the stack."""
    nested = struct.pack("<I", 9) + b"".join(struct.pack("<IQ", 9, 1) for _ in range(5000))
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + nested + bytes(64)

    assert "too deeply" in problem_of(tmp_path, data)


def tensor_file(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    info = text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + info + bytes(4096)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (tensor_file(b"t", (1 << 40,), 0, 0), "cut short"),
        (tensor_file(b"t", (8,), 0, 4096), "cut short"),
        (tensor_file(b"t", (8,), 0, 1 << 40), "lies beyond its end"),
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
def test_tensors_that_cannot_be_are_refused(tmp_path: Path, data: bytes, expected: str) -> None:
    """Every claim about a tensor is compared with the file."""
    assert expected in problem_of(tmp_path, data)


def test_a_tensor_type_of_the_future_is_left_to_llama_cpp(tmp_path: Path) -> None:
    """A type not known here is no reason to refuse a file."""
    path = tmp_path / "m.gguf"
    path.write_bytes(tensor_file(b"t", (7,), 999, 0))

    assert read_header(path).num_parameters == 7


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    """The operating system's reason is passed on."""
    with pytest.raises(ModelFileInvalid, match="cannot be read: no such file"):
        read_header(tmp_path / "none.gguf")


@pytest.mark.parametrize("alignment", [0, 3, 2**21, "x"])
def test_an_impossible_alignment_is_refused(tmp_path: Path, alignment: object) -> None:
    """Tensor offsets are computed from it."""
    assert "alignment" in problem_of(tmp_path, gguf_bytes({"general.alignment": alignment}))


def test_wrong_types_of_values_are_named(tmp_path: Path) -> None:
    """Asking for a number where the file has a text says so, with the key."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({"n": "text", "t": 5, "l": [1.5]}))
    header = read_header(path)

    with pytest.raises(ModelFileInvalid, match="n is not a whole number"):
        header.integer("n")
    with pytest.raises(ModelFileInvalid, match="t is not a text"):
        header.text("t")
    with pytest.raises(ModelFileInvalid, match="l holds something else"):
        header.integers("l")


def test_the_table_of_tensor_types_is_the_installed_llama_cpps() -> None:
    """Block sizes are compared with the library that will load the tensors."""
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
