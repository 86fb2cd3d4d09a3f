"""Lines of known programs that are not for the model, in the shapes in which they come."""

import pytest

from inference_svc.chat.conversation import Conversation, Message, Role, TextPart
from inference_svc.chat.vendor_lines import VENDOR_LINES, without_vendor_lines
from tests.support.conversations import assistant, conversation, system, user

OLD = "x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch=a1b2c;"
OTHER = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=sdk-cli; cch=eb6c6;"
NEW = "x-anthropic-billing-header: cc_version=2.1.227.7d1; cc_entrypoint=sdk-cli;"
IDENTITY = "You are Claude Code, Anthropic's official CLI for Claude."
ASKED = user("hi")


def blocks(*texts: str, role: Role = Role.SYSTEM) -> Message:
    return Message(role, tuple(map(TextPart, texts)))


@pytest.mark.parametrize("header", [OLD, OTHER, NEW])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("{}|" + IDENTITY, [IDENTITY], id="a block of its own"),
        pytest.param("{}\n" + IDENTITY + "|Be brief.", [IDENTITY, "Be brief."], id="a first line"),
        pytest.param("{}\n{}\n  a\n", ["  a\n"], id="two lines, and spaces that stay"),
        pytest.param("a|{}|b", ["a", "b"], id="a later block"),
        pytest.param("a\n{}\nb", ["a\n{}\nb"], id="within a text it is a quotation"),
    ],
)
def test_the_header_is_removed_from_system_messages(
    header: str, before: str, after: list[str]
) -> None:
    messages = [
        blocks(*before.replace("{}", header).split("|"), role=role)
        for role in (Role.SYSTEM, Role.DEVELOPER)
    ]

    found = without_vendor_lines(conversation(*messages, ASKED), VENDOR_LINES)

    texts = [[text.replace("{}", header) for text in after]] * 2
    assert [[part.text for part in each.parts] for each in found.messages[:2]] == texts  # type: ignore[union-attr]
    assert found.messages[2] == ASKED


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([system(NEW), ASKED], [ASKED], id="a message without anything else"),
        pytest.param([system(NEW)], [system(NEW)], id="the only message"),
        pytest.param([user(NEW), assistant(NEW)], [user(NEW), assistant(NEW)], id="other roles"),
    ],
)
def test_only_system_messages_beside_others_are_left_out(
    before: list[Message], after: list[Message]
) -> None:
    found = without_vendor_lines(conversation(*before), VENDOR_LINES)

    assert list(found.messages) == after


def test_nothing_is_removed_if_no_line_is_named() -> None:
    asked: Conversation = conversation(blocks(OLD, IDENTITY), ASKED)

    assert without_vendor_lines(asked, ()) is asked
