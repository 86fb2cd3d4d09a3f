"""The index of an export, the id map, and the conversion of objects."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from corral_cli.__main__ import cli
from corral_cli.migration.export_file import MAX_LINE_BYTES, index_export
from corral_cli.migration.id_map import IdMap
from corral_cli.migration.translator import Translator
from dialects.openai.assistants.objects import Assistant, assistant_object
from dialects.openai.assistants.requests import AssistantBody, create_assistant_request
from dialects.openai.resources.vector_stores import VectorStoreBody, create_store_request

TARGET = "127.0.0.1:50052"


def write_export(folder: Path, *objects: dict[str, Any], name: str = "a.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    return path


def make_message(message_id: str, created_at: int, thread: str = "thread_1") -> dict[str, Any]:
    return {
        "id": message_id,
        "object": "thread.message",
        "created_at": created_at,
        "thread_id": thread,
    }


@pytest.mark.parametrize("order", [1, -1])
def test_messages_are_read_oldest_first(tmp_path: Path, order: int) -> None:
    """In either order of the file. Messages of the same second keep their order."""
    messages = [
        make_message("a", 1),
        make_message("b", 2),
        make_message("c", 2),
        make_message("d", 3),
    ]
    export = index_export(
        write_export(tmp_path, *messages[::order], make_message("x", 9, "thread_2"))
    )

    assert [each["id"] for each in export.messages_of("thread_1")] == ["a", "b", "c", "d"]
    assert export.messages_of("thread_3") == []


def test_a_folder_is_read_like_one_file(tmp_path: Path) -> None:
    """All files that end with .jsonl. Objects of other kinds are counted."""
    write_export(tmp_path, {"id": "thread_1", "object": "thread"}, name="a.jsonl")
    write_export(
        tmp_path, make_message("m", 1), {"id": "run_1", "object": "thread.run"}, name="b.jsonl"
    )
    write_export(tmp_path, {"id": "asst_1", "object": "assistant"}, name="c.txt")
    export = index_export(tmp_path)

    assert (len(export.threads), sum(map(len, export.messages.values()))) == (1, 1)
    assert (len(export.assistants), len(export.others)) == (0, 1)


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_messages_of_one_second_is_that_of_other_threads(
    tmp_path: Path, order: int
) -> None:
    """Messages that were created with a thread are all of the same second."""
    messages = [make_message("a", 5), make_message("b", 5)][::order]
    other_messages = [make_message("c", 6, "thread_2"), make_message("d", 7, "thread_2")][::order]
    export = index_export(write_export(tmp_path, *messages, *other_messages))

    assert [each["id"] for each in export.messages_of("thread_1")] == ["a", "b"]


def test_duplicates_count_once(tmp_path: Path) -> None:
    """A folder may have two exports of the same threads."""
    thread = {"id": "thread_1", "object": "thread"}
    for name in ("a.jsonl", "b.jsonl"):
        write_export(tmp_path, thread, make_message("a", 1), make_message("b", 2), name=name)
    export = index_export(tmp_path)

    assert (len(export.threads), sum(map(len, export.messages.values()))) == (1, 2)
    assert [each["id"] for each in export.messages_of("thread_1")] == ["a", "b"]


def test_messages_without_their_thread_are_counted(tmp_path: Path) -> None:
    """They cannot be imported."""
    export = index_export(write_export(tmp_path, make_message("a", 1)))

    assert (len(export.threads), len(export.orphan_messages)) == (0, 1)


def test_a_map_with_a_truncated_line_can_be_continued(tmp_path: Path) -> None:
    """Only that line is lost."""
    path = tmp_path / "ids"
    with IdMap(path, TARGET) as ids:
        ids.add({"one": "1"})
    path.write_bytes(path.read_bytes() + b'{"target": "127')
    with IdMap(path, TARGET) as ids:
        assert (ids.get("one"), ids.get("two")) == ("1", None)
        ids.add({"two": "2"})
    with IdMap(path, TARGET) as ids:
        assert (ids.get("one"), ids.get("two")) == ("1", "2")
    with IdMap(path, "elsewhere:1") as ids:
        assert ids.get("one") is None


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    """It is not read into memory."""
    path = tmp_path / "export.jsonl"
    with path.open("wb") as file:
        file.truncate(MAX_LINE_BYTES + 2)  # zeros, which take no space

    with pytest.raises(click.ClickException, match="line 1: longer than"):
        index_export(path)


def test_models_are_renamed() -> None:
    """By their old name, or to the default."""
    translator = Translator({"gpt-4o": "demo"}, "", lambda old: None, with_search=True)
    other = Translator({"gpt-4o": "demo"}, "rest", lambda old: None, with_search=True)

    def convert_model(translator: Translator, model: str) -> str:
        return translator.assistant({"id": "asst", "model": model}, "").assistant.model

    assert [convert_model(translator, name) for name in ("gpt-4o", "o1")] == ["demo", "o1"]
    assert [convert_model(other, name) for name in ("gpt-4o", "o1")] == ["demo", "rest"]


def test_an_import_keeps_every_field_of_an_assistant() -> None:
    """That clients set and see; an id of a file or a store would be a new one."""
    body = {
        "model": "demo",
        "name": "Ada",
        "description": "Counts.",
        "instructions": "Be brief.",
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "top_p": 0.25,
        "reasoning_effort": "low",
        "response_format": {"type": "json_object"},
        "tool_resources": {"file_search": {"vector_store_ids": []}},
    }
    made = create_assistant_request(body, "")
    translator = Translator({}, "", lambda old: None, with_search=True)
    exported = {**assistant_object(made.assistant), "id": "asst"}

    assert body.keys() == AssistantBody.model_fields.keys() & Assistant.__annotations__.keys()
    assert translator.assistant(exported, "") == made


def test_an_import_keeps_every_field_of_a_store() -> None:
    """But for those of its files, which a store does not show."""
    body = {
        "name": "foxes",
        "description": "About foxes.",
        "expires_after": {"anchor": "last_active_at", "days": 3},
        "metadata": {"a": "b"},
    }
    made = create_store_request(body, "")
    translator = Translator({}, "", lambda old: None, with_search=True)

    assert body.keys() == VectorStoreBody.model_fields.keys() - {"file_ids", "chunking_strategy"}
    assert translator.store({**body, "id": "vs_1", "object": "vector_store"}) == made


def test_an_expired_store_is_skipped() -> None:
    """Its files no longer exist."""
    translator = Translator({}, "", lambda old: None, with_search=True)
    store = {"id": "vs_1", "object": "vector_store", "name": "foxes", "status": "expired"}

    assert translator.store(store) is None
    assert translator.skipped == {"expired vector stores": ["vs_1"]}


@pytest.mark.parametrize("export", [".", "../export", "deeper/.."])
def test_the_map_is_written_next_to_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: str
) -> None:
    """Also if the path does not end with the name of the folder."""
    folder = tmp_path / "export"
    (folder / "deeper").mkdir(parents=True)
    write_export(folder)
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(cli, ["import", "assistants", export, "--control", "127.0.0.1:1"])

    assert result.exit_code == 0, result.output
    assert (tmp_path / "export.ids").exists()
