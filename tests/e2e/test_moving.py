"""Import of an export by a script with OpenAI's SDK, and export by the command."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.moving import corral, read_id_map
from tests.support.services import MODEL, Corral

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the SDK deprecates Assistants
]

ASSISTANT = {
    "id": "asst_old",
    "object": "assistant",
    "created_at": 1,
    "name": "Tutor",
    "description": None,
    "model": "gpt-4o",
    "instructions": "Be kind.",
    "tools": [{"type": "code_interpreter"}, {"type": "file_search"}],
    "tool_resources": {"file_search": {"vector_store_ids": ["vs_old"]}},
    "metadata": {"team": "a"},
    "temperature": 0.5,
    "top_p": 1.0,
    "response_format": "auto",
}
THREAD = {"id": "thread_old", "object": "thread", "created_at": 2, "metadata": {"user": "u"}}
FILE = {"id": "file-old", "object": "file", "filename": "n.txt", "purpose": "assistants"}


def make_message(number: int, created_at: int, role: str = "user", **fields: Any) -> dict[str, Any]:
    """Return a message in the format of OpenAI's list."""
    text = {"type": "text", "text": {"value": f"number {number}", "annotations": []}}
    return {
        "id": f"msg_old{number}",
        "object": "thread.message",
        "created_at": created_at,
        "thread_id": "thread_old",
        "role": role,
        "content": [text],
        "attachments": [],
        "metadata": {},
        **fields,
    }


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Write an export like a script with OpenAI's SDK: newest messages first."""
    attached = [{"file_id": "file-old", "tools": [{"type": "file_search"}]}]
    messages = [
        make_message(3, 5, "assistant", content=[]),
        make_message(2, 4, "assistant", assistant_id="asst_old", run_id="run_old"),
        make_message(1, 4, attachments=attached),
        make_message(0, 3),
    ]
    lines = [*messages, THREAD, ASSISTANT, FILE]
    path = tmp_path / "export.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    content_folder = tmp_path / "export.jsonl.files"
    content_folder.mkdir()
    (content_folder / "file-old").write_text("The answer is 42.")
    return path


def test_an_export_is_imported_once(up: Corral, client: openai.OpenAI, export: Path) -> None:
    """In order and with the contents of files. Skipped objects are reported; a second import does
    nothing."""
    arguments = ("import", "assistants", export, "--model", "gpt-4o=demo-chat", "--no-search")
    first, rerun = corral(up, *arguments), corral(up, *arguments)
    ids = read_id_map(export)

    assert first.returncode == 0, first.stderr
    assert "skipped: 1 messages without content" in first.stderr
    assert "skipped: 1 tools code_interpreter" in first.stderr
    assert "skipped: 1 references to vector stores that were not imported" in first.stderr
    assistant = client.beta.assistants.retrieve(ids["asst_old"])
    assert (assistant.name, assistant.model, assistant.temperature) == ("Tutor", "demo-chat", 0.5)
    assert [tool.type for tool in assistant.tools] == ["file_search"]
    thread = client.beta.threads.retrieve(ids["thread_old"])
    assert thread.metadata == {"user": "u"}
    messages = client.beta.threads.messages.list(thread.id, order="asc").data
    assert [message.id for message in messages] == [ids[f"msg_old{n}"] for n in range(3)]
    assert [message.role for message in messages] == ["user", "user", "assistant"]
    assert messages[1].attachments is not None
    assert messages[1].attachments[0].file_id == ids["file-old"]
    assert messages[1].attachments[0].tools == []
    assert client.files.content(ids["file-old"]).text == "The answer is 42."

    assert (
        first.stdout == "imported 1 assistants, 1 threads, 3 messages, 1 files, 0 vector stores\n"
    )
    assert rerun.returncode == 0, rerun.stderr
    assert (
        rerun.stdout == "imported 0 assistants, 0 threads, 0 messages, 0 files, 0 vector stores\n"
    )
    assert read_id_map(export) == ids
    assert len(client.beta.threads.messages.list(thread.id).data) == 3


def test_an_import_without_its_map_creates_no_duplicates(
    up: Corral, client: openai.OpenAI, export: Path
) -> None:
    """The server recognizes the requests by their ids."""
    arguments = ("import", "assistants", export, "--model", "demo-chat", "--no-search")
    assert corral(up, *arguments).returncode == 0
    ids = read_id_map(export)
    export.with_name(export.name + ".ids").unlink()

    assert corral(up, *arguments).returncode == 0
    assert read_id_map(export) == ids


def test_large_messages_are_imported_singly(
    up: Corral, client: openai.OpenAI, tmp_path: Path
) -> None:
    """Requests and pages stay below the limit of message sizes."""
    content = [{"type": "text", "text": {"value": "x" * 1_000_000}}]
    thread_fields = {"thread_id": "thread_large"}
    messages = [
        make_message(number, number, content=content, id=f"msg_large{number}", **thread_fields)
        for number in range(34)
    ]
    path = tmp_path / "large.jsonl"
    lines = [{**THREAD, "id": "thread_large"}, *messages]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = corral(up, "import", "assistants", path)
    assert result.stdout.startswith("imported 0 assistants, 1 threads, 34 messages, "), (
        result.stderr
    )
    ids = read_id_map(path)
    stored = list(client.beta.threads.messages.list(ids["thread_large"], order="asc", limit=100))
    reexport = tmp_path / "again.jsonl"
    result = corral(up, "export", "assistants", reexport)

    assert [message.id for message in stored] == [ids[f"msg_large{n}"] for n in range(34)]
    assert result.returncode == 0, result.stderr
    exported = [json.loads(line)["id"] for line in reexport.read_text().splitlines()]
    assert set(ids.values()) <= set(exported)


def test_a_dry_run_changes_nothing(up: Corral, client: openai.OpenAI, export: Path) -> None:
    """It prints what would be imported and skipped, and models that the server does not have."""
    before = client.beta.assistants.list(limit=1).data
    result = corral(
        up, "import", "assistants", export, "--dry-run", "--no-search", "--target", up.target
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("would import 1 assistants, 1 threads, 3 messages, 1 files, ")
    assert "skipped: 1 messages without content: msg_old3" in result.stderr
    assert "not served: 1 assistants with the model 'gpt-4o': asst_old" in result.stderr
    assert client.beta.assistants.list(limit=1).data == before
    assert not export.with_name(export.name + ".ids").exists()


def test_an_invalid_line_is_reported_with_its_number(up: Corral, export: Path) -> None:
    """Before anything is imported."""
    with export.open("a") as added:
        added.write("{broken\n")
    result = corral(up, "import", "assistants", export)

    assert result.returncode == 1
    assert f"{export.name}, line 8" in result.stderr


def test_an_export_can_be_imported_again(up: Corral, client: openai.OpenAI, tmp_path: Path) -> None:
    """Objects in OpenAI's format, and the contents of files. Existing files are not replaced."""
    file = client.files.create(file=("n.txt", b"42"), purpose="assistants")
    attachment: Any = {"file_id": file.id, "tools": []}
    thread = client.beta.threads.create(
        messages=[{"role": "user", "content": "hi", "attachments": [attachment]}],
        metadata={"k": "v"},
    )
    path = tmp_path / "all.jsonl"
    result = corral(up, "export", "assistants", path)
    objects = [json.loads(line) for line in path.read_text().splitlines()]
    thread_objects = [each for each in objects if thread.id in (each["id"], each.get("thread_id"))]
    thread_file = tmp_path / "mine.jsonl"
    thread_file.write_text("".join(json.dumps(each) + "\n" for each in thread_objects))
    assert corral(up, "import", "assistants", thread_file).returncode == 0
    copy = client.beta.threads.messages.list(read_id_map(thread_file)[thread.id])

    assert result.returncode == 0, result.stderr
    assert file.id in {each["id"] for each in objects if each["object"] == "file"}
    assert (tmp_path / "all.jsonl.files" / file.id).read_bytes() == b"42"
    assert [each["object"] for each in thread_objects] == ["thread", "thread.message"]
    assert copy.data[0].content[0].to_dict() == thread_objects[1]["content"][0]


def test_a_thread_is_migrated_to_a_conversation(up: Corral, client: openai.OpenAI) -> None:
    """With the same items. Repeating the command returns the same conversation."""
    thread = client.beta.threads.create(
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello"},
        ],
        metadata={"k": "v"},
    )
    first = corral(up, "threads", "migrate", thread.id)
    rerun = corral(up, "threads", "migrate", thread.id)
    thread_id, conversation_id = first.stdout.split()
    messages = client.beta.threads.messages.list(thread.id, order="asc").data

    assert first.stdout == rerun.stdout
    assert thread_id == thread.id
    assert conversation_id.startswith("conv_")
    assert [message.id[:4] for message in messages] == ["msg_", "msg_"]


def test_an_invalid_object_is_reported_with_its_id(up: Corral, export: Path) -> None:
    with export.open("a") as added:
        odd = {"id": "asst_odd", "object": "assistant", "model": "m", "tools": ["what"]}
        added.write(json.dumps(odd) + "\n")
    result = corral(up, "import", "assistants", export, "--dry-run")

    assert result.returncode == 1
    assert "asst_odd: not a valid OpenAI object" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_object_that_the_server_refuses_does_not_end_the_import(
    up: Corral, tmp_path: Path
) -> None:
    """It is named, and imported by the next call once it is right."""
    export = tmp_path / "refused.jsonl"
    long, good = (
        {"id": f"asst_{name}", "object": "assistant", "model": MODEL, "name": "x" * length}
        for name, length in (("long", 257), ("good", 256))
    )
    export.write_text("".join(json.dumps(each) + "\n" for each in (long, good)))
    first = corral(up, "import", "assistants", export)
    export.write_text(export.read_text().replace("x" * 257, "short"))
    second = corral(up, "import", "assistants", export)

    assert first.returncode == 1
    assert "1 assistants" in first.stdout
    assert "not imported: asst_long: " in first.stderr
    assert "name" in first.stderr
    assert second.returncode == 0
    assert "1 assistants" in second.stdout
