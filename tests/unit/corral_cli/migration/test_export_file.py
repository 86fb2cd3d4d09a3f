"""What an import remembers, and in which order it reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from corral_cli.__main__ import cli
from corral_cli.migration.export_file import look_through
from corral_cli.migration.id_map import IdMap
from corral_cli.migration.translator import Translator

HERE = "127.0.0.1:50052"


def written(folder: Path, *objects: dict[str, Any], name: str = "a.jsonl") -> Path:
    """An export."""
    path = folder / name
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    return path


def a_message(message_id: str, created_at: int, thread: str = "thread_1") -> dict[str, Any]:
    """A message."""
    return {
        "id": message_id,
        "object": "thread.message",
        "created_at": created_at,
        "thread_id": thread,
    }


@pytest.mark.parametrize("order", [1, -1])
def test_messages_are_read_oldest_first(tmp_path: Path, order: int) -> None:
    """Whichever way they were listed; those of one second stay beside each other as they were."""
    messages = [a_message("a", 1), a_message("b", 2), a_message("c", 2), a_message("d", 3)]
    export = look_through(written(tmp_path, *messages[::order], a_message("x", 9, "thread_2")))

    assert [each["id"] for each in export.messages_of("thread_1")] == ["a", "b", "c", "d"]
    assert export.messages_of("thread_3") == []


def test_a_folder_is_read_like_one_file(tmp_path: Path) -> None:
    """All of its files that end with .jsonl; objects of other kinds are counted."""
    written(tmp_path, {"id": "thread_1", "object": "thread"}, name="a.jsonl")
    written(tmp_path, a_message("m", 1), {"id": "run_1", "object": "thread.run"}, name="b.jsonl")
    written(tmp_path, {"id": "asst_1", "object": "assistant"}, name="c.txt")
    export = look_through(tmp_path)

    assert (len(export.threads), export.num_messages, len(export.assistants)) == (1, 1, 0)
    assert export.num_others == 1


@pytest.mark.parametrize("order", [1, -1])
def test_messages_of_one_second_go_by_the_lists_of_other_threads(
    tmp_path: Path, order: int
) -> None:
    """A thread that was made with its messages has them all in one second."""
    ones = [a_message("a", 5), a_message("b", 5)][::order]
    others = [a_message("c", 6, "thread_2"), a_message("d", 7, "thread_2")][::order]
    export = look_through(written(tmp_path, *ones, *others))

    assert [each["id"] for each in export.messages_of("thread_1")] == ["a", "b"]


def test_an_object_that_stands_there_twice_is_one(tmp_path: Path) -> None:
    """As it does where two exports of the same threads are in a folder."""
    thread = {"id": "thread_1", "object": "thread"}
    for name in ("a.jsonl", "b.jsonl"):
        written(tmp_path, thread, a_message("a", 1), a_message("b", 2), name=name)
    export = look_through(tmp_path)

    assert (len(export.threads), export.num_messages) == (1, 2)
    assert [each["id"] for each in export.messages_of("thread_1")] == ["a", "b"]


def test_messages_whose_thread_is_not_there_are_counted(tmp_path: Path) -> None:
    """They cannot be brought."""
    export = look_through(written(tmp_path, a_message("a", 1)))

    assert (export.num_messages, export.num_lost) == (0, 1)


def test_a_map_goes_on_behind_a_line_that_was_cut_off(tmp_path: Path) -> None:
    """A kill in the middle of a line costs that line alone."""
    path = tmp_path / "ids"
    with IdMap(path, HERE) as ids:
        ids.add({"one": "1"})
    path.write_bytes(path.read_bytes() + b'{"target": "127')
    with IdMap(path, HERE) as ids:
        assert (ids.get("one"), ids.get("two")) == ("1", None)
        ids.add({"two": "2"})
    with IdMap(path, HERE) as ids:
        assert (ids.get("one"), ids.get("two")) == ("1", "2")
    with IdMap(path, "elsewhere:1") as ids:
        assert ids.get("one") is None


def test_a_model_has_the_name_that_it_has_here() -> None:
    """By its own name there, or by the one for all others."""
    translator = Translator({"gpt-4o": "demo"}, "", lambda old: None, with_search=True)
    other = Translator({"gpt-4o": "demo"}, "rest", lambda old: None, with_search=True)

    def model_of(made: Translator, model: str) -> str:
        return made.assistant({"model": model}, "").assistant.model

    assert [model_of(translator, name) for name in ("gpt-4o", "o1")] == ["demo", "o1"]
    assert [model_of(other, name) for name in ("gpt-4o", "o1")] == ["demo", "rest"]


def test_a_store_that_has_expired_stays_behind() -> None:
    """It would live again, without its files."""
    translator = Translator({}, "", lambda old: None, with_search=True)
    store = {"id": "vs_1", "object": "vector_store", "name": "foxes", "status": "expired"}

    assert translator.store(store) is None
    assert translator.left_out == {"vector stores that have expired": 1}


@pytest.mark.parametrize("where", [".", "../export", "deeper/.."])
def test_the_map_lies_beside_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Also where the folder is named without its name."""
    folder = tmp_path / "export"
    (folder / "deeper").mkdir(parents=True)
    written(folder)
    monkeypatch.chdir(folder)
    ran = CliRunner().invoke(cli, ["import", "assistants", where, "--control", "127.0.0.1:1"])

    assert ran.exit_code == 0, ran.output
    assert (tmp_path / "export.ids").exists()
