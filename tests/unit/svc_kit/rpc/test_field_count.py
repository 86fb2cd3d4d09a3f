"""How many values a message has is checked before it is parsed."""

import pytest
from corral.inference.v1 import chat_pb2
from corral.inference.v1 import inference_service_pb2 as pb
from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from svc_kit.errors import DomainError, InvalidField, TooLong
from svc_kit.rpc.field_count import MAX_FIELDS, check_fields
from svc_kit.rpc.request_reader import RequestReader
from svc_kit.settings.groups import ServerSettings

METHOD = "/corral.inference.v1.InferenceService/Chat"


def parse(raw: bytes, kind: type[Message] = pb.ChatRequest) -> Message:
    parser = RequestReader(ServerSettings()).parser(METHOD, kind.FromString, is_public=False)
    message: Message = parser(raw)
    return message


def chat(num_messages: int, text: str = "x") -> pb.ChatRequest:
    """A request with so many messages, each of four values."""
    message = chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER, parts=[chat_pb2.ContentPart(text=text)])
    return pb.ChatRequest(conversation=pb.Conversation(messages=[message] * num_messages))


def test_a_message_with_too_many_values_is_refused() -> None:
    """With the limit; one with as many as it allows is parsed."""
    most = chat((MAX_FIELDS - 1) // 4)
    assert parse(most.SerializeToString()) == most
    with pytest.raises(TooLong) as refusal:
        parse(chat(MAX_FIELDS // 4).SerializeToString())

    assert str(refusal.value) == (
        f"Invalid 'request': got {MAX_FIELDS + 1} values, expected at most {MAX_FIELDS}."
    )


def test_empty_messages_count() -> None:
    """They are the smallest on the wire, and take the most memory for that."""
    with pytest.raises(TooLong):
        parse(b"\x0a\x00" * (MAX_FIELDS + 1), pb.Conversation)


@pytest.mark.parametrize("num_messages", [1, 200])
def test_long_texts_do_not_count_by_their_bytes(num_messages: int) -> None:
    """A long request of few values is parsed."""
    request = chat(num_messages, "\n\x00é" * 10_000_000 if num_messages == 1 else "x" * 10_000)

    assert parse(request.SerializeToString()) == request


@given(st.binary(max_size=64), st.integers(0, 2 * MAX_FIELDS))
@example(b"\x80" * 1_000_000, 0)
@settings(max_examples=10, deadline=None)
def test_invalid_bytes_are_left_to_the_parser(junk: bytes, cut: int) -> None:
    """Or refused; nothing else is raised."""
    raw = chat(MAX_FIELDS // 3).SerializeToString()[:cut] + junk + bytes(MAX_FIELDS)
    with pytest.raises(DomainError) as refusal:
        parse(raw)

    assert isinstance(refusal.value, TooLong | InvalidField)


def test_functions_of_other_kinds_are_not_checked() -> None:
    """Messages of them are no protobuf."""
    check_fields(b"\x0a\x00" * (MAX_FIELDS + 1), len)
