"""The turns of a history are those that the model wrote."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby

from hypothesis import example, given
from hypothesis import strategies as st

from control_svc.agent.prompt import turn_messages
from control_svc.inference.turns import TextPart, TurnRole
from control_svc.items.model import (
    FileSearchCall,
    Item,
    ItemStatus,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    Reasoning,
    Role,
    Text,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Turn = list[tuple[str, str]]
"""The kinds and texts of what a model wrote."""
PIECES = st.lists(
    st.tuples(st.sampled_from(["reasoning", "text"]), st.text("abc", min_size=1)), min_size=1
)


def one_of_a_kind(pieces: Turn) -> Turn:
    return [
        (kind, "".join(text for _, text in same))
        for kind, same in groupby(pieces, key=lambda piece: piece[0])
    ]


def make_item(name: str, content: object, origin: str = "") -> Item:
    status = ItemStatus.COMPLETED
    return Item(id=name, status=status, created_at=NOW, content=content, origin=origin)  # type: ignore[arg-type]  # any content


def written(pieces: Turn, kind: str) -> list[str]:
    return [text for each, text in pieces if each == kind]


@given(st.lists(st.tuples(PIECES.map(one_of_a_kind), st.booleans()), max_size=5))
@example([([("text", "a")], False), ([("reasoning", "b"), ("text", "c")], False)])
@example([([("reasoning", "a")], False), ([("text", "b")], False)])
def test_each_response_has_a_message_of_its_own(responses: list[tuple[Turn, bool]]) -> None:
    """Whether a user wrote between them or not; one that is only a thought has none."""
    items: list[Item] = []
    for number, (pieces, asks) in enumerate(responses):
        if asks:
            question = Message(role=Role.USER, content=(Text(text="?"),))
            items.append(make_item(f"u{number}", question))
        for index, (kind, text) in enumerate(pieces):
            answer = Message(role=Role.ASSISTANT, content=(Text(text=text),))
            content = answer if kind == "text" else Reasoning(text=text)
            items.append(make_item(f"i{number}_{index}", content, f"resp_{number}"))

    messages = turn_messages("", items)

    answers = [each for each in messages if each.role is TurnRole.ASSISTANT]
    assert [(each.reasoning, each.parts) for each in answers] == [
        ("".join(written(pieces, "reasoning")), tuple(map(TextPart, written(pieces, "text"))))
        for pieces, _ in responses
        if written(pieces, "text")
    ]
    assert sum(asks for _, asks in responses) == len(messages) - len(answers)


def test_calls_belong_to_the_response_that_wrote_them() -> None:
    """A search without a text before it to the later one; an approved call, which the next response
    executes, to the one that asked, like a call that was refused."""
    text = Message(role=Role.ASSISTANT, content=(Text(text="a"),))
    search = FileSearchCall(call_id="c1", queries=("q",))
    asked = McpApprovalRequest(server_label="s", name="f", arguments="{}")
    call = McpCall(server_label="s", name="f", arguments="{}", output="x", approval_request_id="i1")
    answer = McpApprovalResponse(approval_request_id="i1", approve=False)

    def num_calls(*contents: tuple[object, str]) -> list[int]:
        items = [make_item(f"i{n}", *content) for n, content in enumerate(contents)]
        messages = turn_messages("", items)
        return [len(each.calls) for each in messages if each.role is TurnRole.ASSISTANT]

    assert num_calls((text, "resp_1"), (search, "resp_1")) == [1]
    assert num_calls((text, "resp_1"), (search, "resp_2")) == [0, 1]
    own = replace(call, approval_request_id="")
    assert num_calls((text, "resp_1"), (own, "resp_2")) == [0, 1]
    yes = replace(answer, approve=True)
    assert num_calls((text, "resp_1"), (asked, "resp_1"), (yes, ""), (call, "resp_2")) == [1]
    assert num_calls((text, "resp_1"), (asked, "resp_1"), (answer, "")) == [1]
