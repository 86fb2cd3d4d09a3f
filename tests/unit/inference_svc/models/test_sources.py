"""Where models come from, and what people read when one cannot be had."""

from pathlib import Path

import pytest

from inference_svc.models.sources import (
    BUNDLED_FOLDER,
    BUNDLED_PATH,
    ModelReference,
    RemoteFile,
    parse_reference,
    resolve_models,
)
from svc_kit.lifecycle import StartupError
from tests.support.gguf_files import write_model


def no_download(remote: RemoteFile) -> Path:
    raise AssertionError(f"{remote} was to be downloaded")


def names(*texts: str) -> list[str]:
    return [model.name for model in resolve_models(texts, no_download)]


def test_the_bundled_model_has_a_name_of_its_own() -> None:
    """`bundled` works with no file at hand, and can be renamed."""
    assert names("bundled") == ["demo-chat"]
    assert names("tiny=bundled") == ["tiny"]
    assert resolve_models(["bundled"], no_download)[0].path == BUNDLED_PATH


def test_a_file_is_called_by_its_own_name_unless_another_is_given(tmp_path: Path) -> None:
    """The ending is left out."""
    path = write_model(tmp_path / "Some-Model-Q4_0.gguf")

    assert names(str(path)) == ["Some-Model-Q4_0"]
    assert names(f"small={path}") == ["small"]


def test_a_path_with_an_equals_sign_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An existing file wins over NAME=SOURCE."""
    path = write_model(tmp_path / "a=b.gguf")

    assert names(str(path)) == ["a=b"]
    monkeypatch.chdir(tmp_path)
    assert names("a=b.gguf") == ["a=b"]


def test_a_relative_path_is_read_from_here_by_whoever_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines and limited child processes may stand in other folders."""
    path = write_model(tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    (found,) = resolve_models(["mine=model.gguf"], no_download)

    assert found.paths == (path,)


def test_a_folder_gives_its_models_and_leaves_the_rest_out(tmp_path: Path) -> None:
    """Projectors, adapters and other files in a folder are no models."""
    write_model(tmp_path / "b.gguf")
    write_model(tmp_path / "a.gguf")
    write_model(tmp_path / "mmproj-a.gguf", general__architecture="clip")
    adapter = BUNDLED_FOLDER / "demo-lora-pirate-f16.gguf"
    (tmp_path / "lora.gguf").write_bytes(adapter.read_bytes())
    (tmp_path / "notes.txt").write_text("not a model")

    assert names(str(tmp_path)) == ["a", "b"]


def test_a_name_fits_a_folder_with_one_model_only(tmp_path: Path) -> None:
    """Two models cannot share the name that was given."""
    write_model(tmp_path / "a.gguf")
    assert names(f"it={tmp_path}") == ["it"]

    write_model(tmp_path / "b.gguf")
    with pytest.raises(StartupError, match="2 models, so it cannot be called 'it'"):
        names(f"it={tmp_path}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("missing.gguf", "there is no such file; give a path, a folder, hf:"),
        ("", "a model reference is empty"),
        ("hf:owner/repo", "write hf:owner/repository/file.gguf"),
        ("hf:owner/repo/model.bin", "write hf:owner/repository/file.gguf"),
        ("hf:owner/repo/../../x.gguf", "write hf:owner/repository/file.gguf"),
        ("hf:o/r/x-00002-of-00003.gguf", "name the first, x-00001-of-00003.gguf"),
    ],
)
def test_a_reference_to_nothing_is_one_line_with_its_remedy(text: str, expected: str) -> None:
    """No traceback: the line says what to write instead."""
    with pytest.raises(StartupError) as raised:
        names(text)

    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    """The file and what is wrong with it are named."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(BUNDLED_PATH.read_bytes()[:100_000])

    with pytest.raises(StartupError, match=r"broken\.gguf: the file is truncated.*Download the"):
        names(str(path))
    with pytest.raises(StartupError, match=r"broken\.gguf: the file is truncated"):
        names(str(tmp_path))


def test_an_empty_folder_and_an_empty_list_are_refused(tmp_path: Path) -> None:
    """Serving nothing is a mistake."""
    with pytest.raises(StartupError, match="there is no model"):
        names(str(tmp_path))
    with pytest.raises(StartupError, match="no model is given"):
        names()


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    """Requests could not tell them apart."""
    (tmp_path / "x").mkdir()
    first = write_model(tmp_path / "m.gguf")
    second = write_model(tmp_path / "x" / "m.gguf")

    with pytest.raises(StartupError, match=r"two models are called 'm'.*NAME=SOURCE"):
        names(str(first), str(second))
    assert names(str(first), f"n={second}") == ["m", "n"]


def test_a_hugging_face_reference_is_downloaded(tmp_path: Path) -> None:
    """The repository, the folder inside it, the file and the revision are understood."""
    asked: list[RemoteFile] = []

    def download(remote: RemoteFile) -> Path:
        asked.append(remote)
        return write_model(tmp_path / "blob.gguf")

    (model,) = resolve_models(["hf:owner/some.repo/q4/model.gguf@v1.0"], download)

    assert asked == [RemoteFile("owner/some.repo", "q4/model.gguf", "v1.0")]
    assert model.name == "model"


def test_all_parts_of_a_split_model_are_downloaded(tmp_path: Path) -> None:
    """Naming the first part is enough."""
    asked: list[str] = []

    def download(remote: RemoteFile) -> Path:
        asked.append(remote.file)
        name = Path(remote.file).name
        number = int(name[2:7]) - 1
        return write_model(tmp_path / name, split__no=number, split__count=2)

    (model,) = resolve_models(["hf:o/r/x-00001-of-00002.gguf"], download)

    assert asked == ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]
    assert model.name == "x"


def test_a_name_may_have_what_model_names_have() -> None:
    """Colons and dots are common; a slash makes it a path."""
    assert parse_reference("llama-3.1:8b=x.gguf") == ModelReference("llama-3.1:8b", "x.gguf")
    assert parse_reference("a/b=x.gguf") == ModelReference(None, "a/b=x.gguf")
