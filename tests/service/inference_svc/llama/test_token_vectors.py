"""The vectors of tokens that are read from model files."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest

from inference_svc.llama.token_vectors import ModelFileChanged, TokenVectors
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.media_prompts import token_vectors

TOKENS = np.array([5, 0, 7, 5], np.int32)


def write_model(path: Path, matrix: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@contextmanager
def opened(path: Path, width: int, count: int) -> Iterator[TokenVectors]:
    vectors = TokenVectors.of_model(path, width, count)
    assert vectors is not None
    with closing(vectors):
        yield vectors


def test_quantized_vectors_are_those_of_gguf() -> None:
    """Padded with zeros to the width of the model's inputs."""
    expected = token_vectors(BUNDLED_PATH)
    count, length = expected.shape
    with opened(BUNDLED_PATH, length + 3, count) as vectors:
        read = vectors.of(TOKENS)

    assert np.array_equal(read[:, :length], expected[TOKENS])
    assert not read[:, length:].any()


@pytest.mark.parametrize("shape", [(8, 6), (1, 8, 6)])
def test_vectors_of_float32_are_read_as_they_are(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Also from a tensor with more dimensions, which llama.cpp loads."""
    matrix = np.arange(48, dtype=np.float32).reshape(shape)
    path = write_model(tmp_path / "model.gguf", matrix)
    with opened(path, 6, 8) as vectors:
        assert np.array_equal(vectors.of(TOKENS), matrix.reshape(8, 6)[TOKENS])


@pytest.mark.parametrize(
    ("shape", "width", "count"), [((8, 6), 5, 8), ((8, 6), 6, 9), ((48,), 48, 8)]
)
def test_only_a_matrix_with_a_row_for_each_token_is_read(
    tmp_path: Path, shape: tuple[int, ...], width: int, count: int
) -> None:
    """Not one that is wider than the model's inputs."""
    path = write_model(tmp_path / "model.gguf", np.zeros(shape, np.float32))

    assert TokenVectors.of_model(path, width, count) is None


def test_a_split_model_without_the_matrix_has_no_vectors(tmp_path: Path) -> None:
    """Its first part may have other tensors only."""
    path = write_model(tmp_path / "model.gguf", np.zeros((8, 6), np.float32))
    path.write_bytes(path.read_bytes().replace(b"token_embd", b"token_norm"))

    assert TokenVectors.of_model(path, 6, 8) is None


@pytest.mark.parametrize("size", [0, None])
def test_a_file_that_is_overwritten_is_not_read(tmp_path: Path, size: int | None) -> None:
    """Its vectors would not be those of the weights in memory."""
    path = write_model(tmp_path / "model.gguf", np.ones((8, 6), np.float32))
    with opened(path, 6, 8) as vectors:
        with path.open("r+b") as file:
            if size is not None:
                file.truncate(size)
            else:
                file.seek(-4, 2)
                file.write(bytes(8))

        with pytest.raises(ModelFileChanged):
            vectors.of(TOKENS)


def test_a_file_that_is_replaced_stays_readable(tmp_path: Path) -> None:
    """Downloads are renamed to the name of the model."""
    path = write_model(tmp_path / "model.gguf", np.ones((8, 6), np.float32))
    with opened(path, 6, 8) as vectors:
        write_model(tmp_path / "new.gguf", np.zeros((8, 6), np.float32)).rename(path)
        assert (vectors.of(TOKENS) == 1).all()
