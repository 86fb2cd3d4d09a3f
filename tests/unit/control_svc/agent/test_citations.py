"""Citations: which passage a number in a text stands for, where there were several searches."""

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


def a_search(*names: str, first: int = 0) -> FileSearchCall:
    """A search that found a passage of each file."""
    results = tuple(
        SearchResult(file_id=f"file-{name}", filename=name, score=1.0, text=f"text of {name}")
        for name in names
    )
    return FileSearchCall(call_id=f"call_{names}", queries=("q",), results=results, first=first)


def items(*contents: Content) -> list[Item]:
    """Items in a timeline."""
    made: Any = {"status": ItemStatus.COMPLETED, "created_at": NOW}
    return [Item(id=f"i{n}", content=content, **made) for n, content in enumerate(contents)]


def test_each_number_names_one_passage() -> None:
    """Of whichever search; a number of none is no citation."""
    searches = [a_search("a", "b"), a_search("c", first=2)]
    cited = find_citations("So [0], but [2]; not [3].", searches)

    assert [(each.file_id, each.marker) for each in cited] == [("file-a", "[0]"), ("file-c", "[2]")]


def test_numbers_go_on_until_the_next_question() -> None:
    """So they stay short in a long thread."""
    question = Message(role=Role.USER, content=(Text(text="?"),))
    answer = Message(role=Role.ASSISTANT, content=(Text(text="!"),))

    assert next_passage_number(items(question)) == 0
    assert (
        next_passage_number(items(question, a_search("a", "b"), a_search("c", first=2), answer))
        == 3
    )
    assert next_passage_number(items(question, a_search("a"), answer, question)) == 0


def test_the_model_reads_the_same_numbers() -> None:
    """Those that citations go by."""
    shown = turn_messages("", items(a_search("a", "b"), a_search("c", first=2)))
    texts = [part.text for each in shown for part in each.parts if isinstance(part, TextPart)]

    assert texts == ["[0] a\ntext of a\n\n[1] b\ntext of b", "[2] c\ntext of c"]
