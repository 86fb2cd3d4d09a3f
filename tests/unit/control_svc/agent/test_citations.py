"""Citations of passages by number, also of several searches."""

from datetime import UTC, datetime
from typing import Any

from control_svc.agent.file_search import find_citations, next_passage_number
from control_svc.agent.prompt import turn_messages
from control_svc.inference.turns import TextPart
from control_svc.items.model import (
    Content,
    FileSearchCall,
    Item,
    ItemStatus,
    Message,
    Role,
    SearchResult,
    Text,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make_search(*names: str, first: int = 0) -> FileSearchCall:
    results = tuple(
        SearchResult(file_id=f"file-{name}", filename=name, score=1.0, text=f"text of {name}")
        for name in names
    )
    return FileSearchCall(call_id=f"call_{names}", queries=("q",), results=results, first=first)


def items(*contents: Content) -> list[Item]:
    fields: Any = {"status": ItemStatus.COMPLETED, "created_at": NOW}
    return [Item(id=f"i{n}", content=content, **fields) for n, content in enumerate(contents)]


def test_each_number_refers_to_one_passage() -> None:
    """Of any search; a number without a passage is not a citation."""
    searches = [make_search("a", "b"), make_search("c", first=2)]
    citations = find_citations("So [0], but [2]; not [3].", searches)

    assert [(each.file_id, each.marker) for each in citations] == [
        ("file-a", "[0]"),
        ("file-c", "[2]"),
    ]


def test_numbers_increase_until_the_next_question() -> None:
    """They restart with each user message, so they stay short in a long thread."""
    question = Message(role=Role.USER, content=(Text(text="?"),))
    answer = Message(role=Role.ASSISTANT, content=(Text(text="!"),))

    assert next_passage_number(items(question)) == 0
    assert (
        next_passage_number(
            items(question, make_search("a", "b"), make_search("c", first=2), answer)
        )
        == 3
    )
    assert next_passage_number(items(question, make_search("a"), answer, question)) == 0


def test_the_prompt_contains_the_numbers() -> None:
    """The same numbers as in citations."""
    messages = turn_messages("", items(make_search("a", "b"), make_search("c", first=2)))
    texts = [part.text for each in messages for part in each.parts if isinstance(part, TextPart)]

    assert texts == ["[0] a\ntext of a\n\n[1] b\ntext of b", "[2] c\ntext of c"]
