"""Results of tools in Ollama's chats, paired with their calls."""

from typing import Any

import pytest

from dialects.ollama.requests import chat_request, parse_chat
from svc_kit.errors import InvalidField

CALLS = [("x", "f"), ("y", "g"), ("z", "f")]


def pair(calls: list[tuple[str, str]], *results: dict[str, Any]) -> list[int]:
    """Which of the calls (ids, or empty, with names) each result answers."""
    sent = [
        {"function": {"name": name}, **({"id": call_id} if call_id else {})}
        for call_id, name in calls
    ]
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": sent},
        *({"role": "tool", "content": "r", **result} for result in results),
    ]
    request = chat_request(parse_chat({"model": "m", "messages": messages}))
    _, assistant, *tools = request.conversation.messages
    ids = [call.id for call in assistant.tool_calls]
    assert [each.name for each in tools] == [calls[ids.index(t.tool_call_id)][1] for t in tools]
    return [ids.index(each.tool_call_id) for each in tools]


@pytest.mark.parametrize(
    ("results", "answered"),
    [
        ([{"tool_call_id": "z"}, {"tool_call_id": "x", "tool_name": "g"}, {}], [2, 0, 1]),
        ([{"tool_name": "f"}, {"tool_name": "f"}, {"tool_name": "g"}], [0, 2, 1]),
        ([{}, {"tool_name": "f"}, {}], [1, 0, 2]),
        ([{}, {"tool_call_id": "x"}, {"tool_name": "g"}], [2, 0, 1]),
        ([{"tool_call_id": ""}, {"tool_name": ""}, {}], [0, 1, 2]),
    ],
    ids=["ids", "names", "order", "before an id and a name", "empty"],
)
def test_a_result_answers_the_call_that_it_names(
    results: list[dict[str, Any]], answered: list[int]
) -> None:
    """By id, by the first open call of its name, or in order, whatever is left by those that name
    one."""
    assert pair(CALLS, *results) == answered


def test_an_id_may_be_of_a_call_that_came_back_without_one() -> None:
    """Some clients (litellm) drop the ids of calls, and keep those of results."""
    without_ids = [("", name) for _, name in CALLS]
    mixed = [("x", "f"), ("", "g")]

    results = [{"tool_call_id": "q", "tool_name": "g"}, {"tool_call_id": "r"}, {}]
    assert pair(without_ids, *results) == [1, 0, 2]
    assert pair(mixed, {"tool_call_id": "q"}, {"tool_call_id": "x"}) == [1, 0]


def test_a_result_without_a_name_is_of_the_calls_before_it() -> None:
    """Although a later one names the same function."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
    results = [{"role": "tool", "content": "r", **name} for name in ({}, {"tool_name": "f"})]
    messages = [call, results[0], call, results[1]]
    request = chat_request(parse_chat({"model": "m", "messages": messages}))
    first, result, second, other = request.conversation.messages

    assert result.tool_call_id == first.tool_calls[0].id
    assert other.tool_call_id == second.tool_calls[0].id


def test_new_ids_are_none_of_the_request() -> None:
    """Of calls before and after, and of results without a call of that id."""
    given = [("", "f"), ("call_1_0", "g"), ("", "f"), ("call_1_0_", "g")]
    results = [{"tool_call_id": "call_1_2"}, {}, {}, {}]

    assert pair(given, *results) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("calls", "results", "answered"),
    [
        ([("a", "f"), ("", "g")], [{"tool_call_id": "q", "tool_name": "f"}], None),
        ([("a", "f"), ("", "g")], [{"tool_call_id": "a"}, {"tool_call_id": "a"}], None),
        ([("a", "f"), ("", "g")], [{"tool_call_id": "q", "tool_name": "g"}, {}], [1, 0]),
        ([("a", "f"), ("", "f")], [{"tool_call_id": "q", "tool_name": "f"}, {}], [1, 0]),
    ],
)
def test_a_result_with_an_id_is_not_of_a_call_with_another(
    calls: list[tuple[str, str]], results: list[dict[str, Any]], answered: list[int] | None
) -> None:
    """Nor of a call without an id, if calls have its id and all of them are answered."""
    if answered is not None:
        assert pair(calls, *results) == answered
        return
    with pytest.raises(InvalidField, match="has the id") as raised:
        pair(calls, *results)
    assert raised.value.field == f"messages[{1 + len(results)}].tool_call_id"


@pytest.mark.parametrize(
    ("results", "field", "problem"),
    [
        ([{"tool_call_id": "q"}], "messages[2].tool_call_id", "the id 'q'"),
        ([{"tool_call_id": "q", "tool_name": "f"}], "messages[2].tool_call_id", "the id 'q'"),
        ([{"tool_call_id": "x"}, {"tool_call_id": "x"}], "messages[3].tool_call_id", "the id 'x'"),
        ([{"tool_name": "h"}], "messages[2].tool_name", "no call of 'h'"),
        ([{"tool_name": "g"}, {"tool_name": "g"}], "messages[3].tool_name", "no call of 'g'"),
        ([{}, {}, {}, {}], "messages[5]", "no call before it lacks one"),
    ],
)
def test_a_result_of_no_call_is_refused_by_name(
    results: list[dict[str, Any]], field: str, problem: str
) -> None:
    """It went to the first open call, whose own result was then taken for another's."""
    with pytest.raises(InvalidField, match=problem) as raised:
        pair(CALLS, *results)

    assert raised.value.field == field


@pytest.mark.parametrize(
    ("results", "number", "name"),
    [([], 0, "f"), ([{}], 1, "g"), ([{"tool_name": "g"}, {"tool_call_id": "x"}], 2, "f")],
)
def test_a_call_without_a_result_is_refused_by_its_place(
    results: list[dict[str, Any]], number: int, name: str
) -> None:
    """Calls may come back without ids, and then the caller knows none."""
    with pytest.raises(InvalidField, match=f"has the result of '{name}'") as raised:
        pair(CALLS, *results)

    assert raised.value.field == f"messages[1].tool_calls[{number}]"
