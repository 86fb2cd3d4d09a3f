"""Objects are written as their types declare them."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NotRequired

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
from corral.control.v1 import adapter_pb2, assistant_pb2, item_pb2, message_pb2
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from dialects.openai.assistants import objects
from dialects.shared.wire import WRITTEN, From, seconds, writer
from tests.support.checked_client import closed
from tests.support.written_openai_objects import written


@pytest.mark.parametrize("shape", list(WRITTEN), ids=lambda shape: shape.__name__)
def test_what_is_written_has_the_declared_type(shape: type) -> None:
    """All its keys, in every example of the message, and no others."""
    validator = jsonschema.Draft202012Validator(closed(TypeAdapter(shape).json_schema()))

    values = written(shape)
    assert values
    for value in values:
        assert validator.is_valid(value), jsonschema.exceptions.best_match(
            validator.iter_errors(value)
        )


def test_the_objects_of_assistants_are_declared() -> None:
    """The parametrized test above sees them."""
    assert {objects.Assistant, objects.Thread, objects.ThreadMessage} <= WRITTEN.keys()


class Summary(TypedDict):
    id: str
    object: Literal["summary"]
    created_at: Annotated[int | None, seconds("create_time")]
    name: str | None
    metadata: dict[str, str]
    top_p: Annotated[float | None, From("options.sampling.top_p")]
    title: Annotated[str, From(".", lambda assistant: assistant.name.title())]


@pytest.fixture(autouse=True)
def only_declared() -> Iterator[None]:
    """The shapes of tests are not those of the API."""
    declared = dict(WRITTEN)
    yield
    WRITTEN.clear()
    WRITTEN.update(declared)


def test_what_is_unset_or_empty_is_null_if_the_type_allows_it() -> None:
    """In nested messages, too."""
    write = writer(assistant_pb2.Assistant, Summary)

    assert write(assistant_pb2.Assistant()) == {
        "id": "",
        "object": "summary",
        "created_at": None,
        "name": None,
        "metadata": {},
        "top_p": None,
        "title": "",
    }


def test_values_are_converted_by_the_kind_of_their_field() -> None:
    """Timestamps to seconds, maps to dicts, and 32-bit floats to the number that was sent."""
    assistant = assistant_pb2.Assistant(id="asst_1", name="tea", metadata={"a": "b"})
    assistant.create_time.seconds = 5
    assistant.options.sampling.top_p = 0.1

    assert writer(assistant_pb2.Assistant, Summary)(assistant) == {
        "id": "asst_1",
        "object": "summary",
        "created_at": 5,
        "name": "tea",
        "metadata": {"a": "b"},
        "top_p": 0.1,
        "title": "Tea",
    }


def test_an_enum_is_its_name_without_the_prefix() -> None:
    shape: Any = TypedDict("shape", {"status": Annotated[str, From("state")]})
    write = writer(message_pb2.Message, shape)
    message = message_pb2.Message(state=message_pb2.Message.STATE_IN_PROGRESS)

    assert write(message) == {"status": "in_progress"}


class Note(TypedDict):
    """A citation in an item."""

    file: Annotated[str, From("file_id")]
    marker: NotRequired[str]


class Notes(TypedDict):
    text: str
    notes: Annotated[list[Note] | None, From("citations")]


def test_messages_in_a_message_are_written_as_their_types_declare() -> None:
    """Without the keys that are not required and whose fields are empty."""
    write = writer(item_pb2.TextPart, Notes)
    cited = [item_pb2.FileCitation(file_id="file-1"), item_pb2.FileCitation(marker="[1]")]

    assert write(item_pb2.TextPart(text="tea")) == {"text": "tea", "notes": None}
    assert write(item_pb2.TextPart(citations=cited)) == {
        "text": "",
        "notes": [{"file": "file-1"}, {"file": "", "marker": "[1]"}],
    }


def test_a_message_without_a_type_is_refused() -> None:
    shape: Any = TypedDict("shape", {"create_time": int})

    with pytest.raises(TypeError, match="create_time is a message"):
        writer(assistant_pb2.Assistant, shape)


@pytest.mark.parametrize(
    "hint",
    [str, Annotated[str, From("id.name")], Annotated[str, From("ide")]],
    ids=["by name", "in a field without fields", "by path"],
)
def test_a_key_without_a_field_is_refused(hint: Any) -> None:
    shape: Any = TypedDict("shape", {"ide": hint})

    with pytest.raises(TypeError, match="has no field"):
        writer(adapter_pb2.Adapter, shape)
