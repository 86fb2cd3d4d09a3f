"""Resolution of model references, and the messages of invalid ones."""

from pathlib import Path
from typing import Any

import pytest

from inference_svc.models import sources
from inference_svc.models.metadata import ModelFile
from svc_kit.lifecycle import StartupError
from tests.support.gguf_files import gguf_bytes, write_model
from tests.support.hf_folders import byte_level, write_folder


def refuse_download(remote: sources.RemoteFile) -> Path:
    raise AssertionError(f"a download of {remote} was started")


def resolve_names(*texts: str) -> list[str]:
    return [model.name for model in sources.resolve_models(texts, refuse_download)]


def test_bundled_is_the_demo_model() -> None:
    """It can be renamed."""
    assert resolve_names("bundled") == ["demo-chat"]
    assert resolve_names("tiny=bundled") == ["tiny"]
    assert sources.resolve_models(["bundled"], refuse_download)[0].path == sources.BUNDLED_PATH


def test_a_model_is_named_by_its_file_or_its_reference(tmp_path: Path) -> None:
    """Without the suffix of the file."""
    path = write_model(tmp_path / "Some-Model-Q4_0.gguf")

    assert resolve_names(str(path)) == ["Some-Model-Q4_0"]
    assert resolve_names(f"small={path}") == ["small"]


def test_a_path_with_an_equals_sign_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the file exists; otherwise it is NAME=SOURCE."""
    path = write_model(tmp_path / "a=b.gguf")

    assert resolve_names(str(path)) == ["a=b"]
    monkeypatch.chdir(tmp_path)
    assert resolve_names("a=b.gguf") == ["a=b"]


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines and child processes may have other working directories."""
    path = write_model(tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    (model,) = sources.resolve_models(["mine=model.gguf"], refuse_download)

    assert model.paths == (path,)


def test_a_folder_is_resolved_to_its_models(tmp_path: Path) -> None:
    """Projectors, adapters and other files are skipped."""
    write_model(tmp_path / "b.gguf")
    write_model(tmp_path / "a.gguf")
    write_model(tmp_path / "mmproj-a.gguf", general__architecture="clip")
    adapter = sources.BUNDLED_FOLDER / "demo-lora-pirate-f16.gguf"
    (tmp_path / "lora.gguf").write_bytes(adapter.read_bytes())
    (tmp_path / "notes.txt").write_text("not a model")

    assert resolve_names(str(tmp_path)) == ["a", "b"]


def test_only_a_folder_with_one_model_can_be_named(tmp_path: Path) -> None:
    """Two models cannot have the same name."""
    write_model(tmp_path / "a.gguf")
    assert resolve_names(f"it={tmp_path}") == ["it"]

    write_model(tmp_path / "b.gguf")
    with pytest.raises(StartupError, match="2 models, so it cannot be called 'it'"):
        resolve_names(f"it={tmp_path}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a model reference is empty"),
        ("hf:owner/repo", "write hf:owner/repository/file.gguf"),
        ("hf:owner/repo/model.bin", "write hf:owner/repository/file.gguf"),
        ("hf:owner/repo/../../x.gguf", "write hf:owner/repository/file.gguf"),
        ("hf:o/r/x-00002-of-00003.gguf", "name the first, x-00001-of-00003.gguf"),
    ],
)
def test_an_invalid_reference_is_a_startup_error(text: str, expected: str) -> None:
    """One line with what to write instead."""
    with pytest.raises(StartupError) as raised:
        resolve_names(text)

    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_used_does_not_hide_the_others(tmp_path: Path) -> None:
    """Whether it is named or in a folder; it has the problem and what to do."""
    good, path = write_model(tmp_path / "a.gguf"), tmp_path / "broken.gguf"
    path.write_bytes(sources.BUNDLED_PATH.read_bytes()[:100_000])
    named = sources.resolve_models([str(path), str(good)], refuse_download)
    found = sources.resolve_models([str(tmp_path)], refuse_download)

    assert {model.name: bool(model.problem) for model in found} == {"a": False, "broken": True}
    assert [named[0].problem, named[1]] == [found[1].problem, found[0]]
    assert "broken.gguf: the file is truncated" in named[0].problem
    assert "Download the file again" in named[0].problem


def test_a_file_that_is_not_there_does_not_hide_the_others(tmp_path: Path) -> None:
    """Nor does a download that fails."""

    def fail(remote: sources.RemoteFile) -> Path:
        raise StartupError(f"{remote} cannot be downloaded")

    good = write_model(tmp_path / "a.gguf")
    models = sources.resolve_models([str(good), "x=missing.gguf", "hf:o/r/m.gguf"], fail)

    assert [model.name for model in models] == ["a", "x", "m"]
    assert "there is no such file; give a path, a folder, hf:" in models[1].problem
    assert models[2].problem == "hf:o/r/m.gguf cannot be downloaded"


def test_an_empty_folder_and_an_empty_list_are_refused(tmp_path: Path) -> None:
    """At least one model is required."""
    with pytest.raises(StartupError, match="there is no model"):
        resolve_names(str(tmp_path))
    with pytest.raises(StartupError, match="no model is given"):
        resolve_names()


def test_duplicate_names_are_refused(tmp_path: Path) -> None:
    """The error shows how to rename a model."""
    (tmp_path / "x").mkdir()
    first = write_model(tmp_path / "m.gguf")
    second = write_model(tmp_path / "x" / "m.gguf")

    with pytest.raises(StartupError, match=r"two models are called 'm'.*NAME=SOURCE"):
        resolve_names(str(first), str(second))
    assert resolve_names(str(first), f"n={second}") == ["m", "n"]


def test_a_hugging_face_reference_is_downloaded(tmp_path: Path) -> None:
    """It may have a folder in the repository and a revision."""
    downloads: list[sources.RemoteFile] = []

    def download(remote: sources.RemoteFile) -> Path:
        downloads.append(remote)
        return write_model(tmp_path / "blob.gguf")

    (model,) = sources.resolve_models(["hf:owner/some.repo/q4/model.gguf@v1.0"], download)

    assert downloads == [sources.RemoteFile("owner/some.repo", "q4/model.gguf", "v1.0")]
    assert model.name == "model"


def test_all_parts_of_a_split_model_are_downloaded(tmp_path: Path) -> None:
    """The reference names the first one."""
    downloads: list[str] = []

    def download(remote: sources.RemoteFile) -> Path:
        downloads.append(remote.file)
        name = Path(remote.file).name
        number = int(name[2:7]) - 1
        return write_model(tmp_path / name, split__no=number, split__count=2)

    (model,) = sources.resolve_models(["hf:o/r/x-00001-of-00002.gguf"], download)

    assert downloads == ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]
    assert model.name == "x"


def test_a_name_may_have_colons_and_dots() -> None:
    """Text with a slash before "=" is a path."""
    assert sources.parse_reference("llama-3.1:8b=x.gguf") == sources.ModelReference(
        "llama-3.1:8b", "x.gguf"
    )
    assert sources.parse_reference("a/b=x.gguf") == sources.ModelReference(None, "a/b=x.gguf")


PROJECTOR: dict[str, Any] = {
    "general.architecture": "clip",
    "clip.has_vision_encoder": True,
    "clip.projector_type": "janus_pro",
}


def write_projector(path: Path, **keys: Any) -> Path:
    """The header of a projector for images."""
    changed = {key.replace("__", "."): value for key, value in keys.items()}
    path.write_bytes(gguf_bytes({**PROJECTOR, **changed}))
    return path


def found_projector(
    model: Path, source: str = "auto", download: sources.Download = refuse_download
) -> Path | None:
    (file,) = sources.resolve_models([f"m={model}"], refuse_download)
    projector = sources.find_projector(file, source, download)
    return None if projector is None else projector.path


def test_the_only_projector_beside_a_model_is_its_own(tmp_path: Path) -> None:
    """With two of them the operator chooses; "none" ignores it."""
    model = write_model(tmp_path / "a.gguf")
    assert found_projector(model) is None

    first = write_projector(tmp_path / "mmproj-a-f16.gguf")
    assert found_projector(model) == first
    assert found_projector(model, "none") is None

    second = write_projector(tmp_path / "a-mmproj.gguf")
    assert found_projector(model) is None
    assert found_projector(model, str(second)) == second
    assert found_projector(model, "hf:owner/repo/mmproj.gguf", lambda _: second) == second
    with pytest.raises(StartupError, match=r"no projector 'mmproj.gguf'"):
        found_projector(model, "mmproj.gguf")


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"general__architecture": "llama"}, "not a projector"),
        ({"clip__has_vision_encoder": False}, "neither pictures nor sounds"),
        ({"clip__projector_type": "deepseek4v"}, "deepseek4v are not supported"),
    ],
)
def test_a_projector_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, keys: dict[str, Any], problem: str
) -> None:
    """The error says how to serve the model without it."""
    write_projector(tmp_path / "mmproj.gguf", **keys)

    with pytest.raises(StartupError, match=rf'{problem}.*projector to "none"'):
        found_projector(write_model(tmp_path / "a.gguf"))


def test_a_tokenizer_is_a_folder_a_gguf_file_or_bundled(tmp_path: Path) -> None:
    folder, path = write_folder(tmp_path / "hf", byte_level()), write_model(tmp_path / "a.gguf")
    found = [
        sources.resolve_tokenizer(source, "mine", refuse_download)
        for source in (str(folder), str(path), "bundled")
    ]

    assert [file.name for file in found] == ["mine"] * 3
    assert [file.path for file in found] == [folder, path, sources.BUNDLED_PATH]
    assert [file.problem for file in found] == [""] * 3


def test_only_the_small_files_of_a_repository_are_downloaded(tmp_path: Path) -> None:
    """Those that it does not have are left out."""
    folder = write_folder(tmp_path, byte_level(), generation_config={"temperature": 0.5})
    asked = []

    def download(remote: sources.RemoteFile) -> Path:
        asked.append(str(remote))
        if not (folder / remote.file).exists():
            raise sources.RemoteFileMissing("missing")
        return folder / remote.file

    file = sources.resolve_tokenizer("hf:owner/model@v1", "mine", download)

    assert (file.path, file.problem) == (folder, "")
    assert file.sampling_hints == {"temp": 0.5}
    assert asked == [
        "hf:owner/model/config.json@v1",
        "hf:owner/model/tokenizer.json@v1",
        "hf:owner/model/tokenizer_config.json@v1",
        "hf:owner/model/generation_config.json@v1",
        "hf:owner/model/chat_template.jinja@v1",
    ]


def test_files_of_several_commits_are_not_mixed(tmp_path: Path) -> None:
    def download(remote: sources.RemoteFile) -> Path:
        return tmp_path / remote.file / remote.file

    file = sources.resolve_tokenizer("hf:owner/model", "mine", download)

    assert "was changed during the download" in file.problem


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("there/is/none", "there is no such file"),
        ("", "there is no config.json in it; config.json and tokenizer.json are needed"),
        ("hf:owner/model", "no such repository"),
    ],
)
def test_a_tokenizer_that_is_not_there_is_a_problem_of_its_model(
    tmp_path: Path, source: str, problem: str
) -> None:
    """Other models are served."""

    def download(remote: sources.RemoteFile) -> Path:
        raise StartupError(f"model {remote}: no such repository")

    file = sources.resolve_tokenizer(source or str(tmp_path), "mine", download)

    assert file.name == "mine"
    assert problem in file.problem


def test_a_tokenizer_outside_a_repository_is_refused() -> None:
    with pytest.raises(StartupError, match="write hf:owner/repository"):
        sources.resolve_tokenizer("hf:../model", "mine", refuse_download)


@pytest.mark.parametrize(
    ("told", "source"),
    [
        ("Qwen/Qwen3-8B", "hf:Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B@v1.0", "hf:Qwen/Qwen3-8B@v1.0"),
        ("{here}", "{here}"),
        ("{here}/m.gguf", "{here}/m.gguf"),
    ],
)
def test_an_engine_tells_a_path_that_is_here_or_a_repository(
    tmp_path: Path, told: str, source: str
) -> None:
    write_model(tmp_path / "m.gguf")

    assert sources.reported_source(told.format(here=tmp_path)) == source.format(here=tmp_path)


@pytest.mark.parametrize("told", ["", "qwen", "./qwen", "../../etc", "owner/m.gguf", "/no/such"])
def test_what_an_engine_tells_of_its_own_machine_is_refused(told: str) -> None:
    with pytest.raises(StartupError, match="neither a file or folder here nor a repository"):
        sources.reported_source(told)


def _found_draft(model: Path, source: str | None) -> ModelFile | None:
    file = sources.describe_file(model, "big")
    return sources.find_draft_model(file, source, refuse_download)


def test_a_draft_model_is_a_file_of_the_same_vocabulary(tmp_path: Path) -> None:
    """None is looked for beside the model."""
    model, draft = write_model(tmp_path / "a.gguf"), write_model(tmp_path / "draft.gguf")
    found = _found_draft(model, str(draft))

    assert found is not None
    assert (found.name, found.path) == ("draft", draft)
    assert _found_draft(model, None) is None


def test_the_bundled_model_has_a_bundled_draft_model() -> None:
    found = _found_draft(sources.BUNDLED_PATH, "bundled")

    assert found is not None
    assert (found.name, found.path) == ("demo-draft-q8_0", sources.BUNDLED_DRAFT_PATH)


def test_a_draft_model_may_be_downloaded(tmp_path: Path) -> None:
    model, draft = write_model(tmp_path / "a.gguf"), write_model(tmp_path / "draft.gguf")
    file, asked = sources.describe_file(model, "big"), []

    def download(remote: sources.RemoteFile) -> Path:
        asked.append(str(remote))
        return draft

    found = sources.find_draft_model(file, "hf:owner/small/small.gguf", download)

    assert found is not None
    assert (found.path, asked) == (draft, ["hf:owner/small/small.gguf"])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"tokenizer__ggml__tokens": ["a"] * 2000},
            "is another one: it has 2000 tokens instead of",
        ),
        ({"llama__attention__causal": False}, "is of the class encoder, which cannot draft"),
        (None, "there is no such file"),
    ],
    ids=["vocabulary", "encoder", "missing"],
)
def test_a_model_that_cannot_draft_is_refused(
    tmp_path: Path, changes: dict[str, Any] | None, problem: str
) -> None:
    """The error names the setting."""
    draft = tmp_path / "draft.gguf"
    if changes is not None:
        write_model(draft, **changes)

    with pytest.raises(StartupError, match=rf"per_model.big.draft_model: .*{problem}"):
        _found_draft(write_model(tmp_path / "a.gguf"), str(draft))


def test_a_folder_of_several_models_is_no_draft_model(tmp_path: Path) -> None:
    model = write_model(tmp_path / "a.gguf")
    write_model(tmp_path / "b.gguf")

    with pytest.raises(StartupError, match="has several models; name one"):
        _found_draft(model, str(tmp_path))


def test_a_model_that_does_not_generate_uses_no_draft_model(tmp_path: Path) -> None:
    model = write_model(tmp_path / "a.gguf", llama__attention__causal=False)

    with pytest.raises(StartupError, match="of the class encoder uses no draft model"):
        _found_draft(model, str(write_model(tmp_path / "draft.gguf")))
