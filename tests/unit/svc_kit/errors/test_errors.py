"""Domain errors: classes, messages, metadata and limits."""

import re
from pathlib import Path

import pytest
from corral.error.v1 import error_reason_pb2

from svc_kit import errors
from svc_kit.errors import ERROR_CLASSES, MAX_MESSAGE_BYTES, MAX_VALUE_BYTES

PROTO = Path(__file__).resolve().parents[4] / "protos/corral/error/v1/error_reason.proto"


def proto_reasons() -> list[str]:
    """Return the values of ErrorReason without their prefix, except UNSPECIFIED."""
    names = error_reason_pb2.ErrorReason.keys()
    return [name.removeprefix("ERROR_REASON_") for name in names[1:]]


def proto_metadata() -> dict[str, list[str]]:
    """Return the metadata keys in the comment of each value."""
    found = {}
    pattern = r"((?:  //[^\n]*\n)+)  ERROR_REASON_(\w+) ="
    for comment, reason in re.findall(pattern, PROTO.read_text()):
        text = " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines())
        listed = re.search(r"Metadata: (.*)", text)
        keys = re.sub(r"\([^)]*\)|\"[^\"]*\"", "", listed[1]) if listed else ""
        found[reason] = re.findall(r"\b[a-z_]+\b", keys.replace(" or ", " "))
    return found


def test_every_reason_has_exactly_one_class() -> None:
    """Required for encoding and decoding."""
    owned = sorted(cls.reason for cls in ERROR_CLASSES)

    assert owned == sorted(proto_reasons())


@pytest.mark.parametrize("cls", ERROR_CLASSES, ids=lambda cls: cls.reason)
def test_metadata_are_those_in_the_proto(cls: type[errors.DomainError]) -> None:
    """As documented in the comment of the reason."""
    assert set(cls.metadata_keys()) == set(proto_metadata()[cls.reason])


@pytest.mark.parametrize("cls", ERROR_CLASSES, ids=lambda cls: cls.reason)
def test_every_message_uses_only_metadata_of_its_class(cls: type[errors.DomainError]) -> None:
    """Otherwise formatting would fail."""
    error = cls(**dict.fromkeys(cls.metadata_keys(), 7))

    assert error.message
    assert "{" not in error.message


def test_the_context_length_message_is_openais() -> None:
    """Agents match it to shorten their history."""
    error = errors.ContextLengthExceeded(field="messages", prompt_tokens=5000, context_tokens=4096)

    assert error.message == (
        "This model's maximum context length is 4096 tokens. However, your messages resulted in "
        "5000 tokens. Please reduce the length of the messages."
    )


def test_attributes_are_typed_and_metadata_are_strings() -> None:
    """As required by ErrorInfo."""
    error = errors.QueueFull(bound="requests", depth=3, limit=2, retry_after=4)

    assert (error.depth, error.retry_after) == (3, 4)
    assert error.metadata == {"bound": "requests", "depth": "3", "limit": "2"}
    assert error.field is None


def test_field_is_the_metadata_field() -> None:
    """It becomes OpenAI's `param`."""
    assert errors.MissingField(field="messages[0].content").field == "messages[0].content"


@pytest.mark.parametrize(
    ("minimum", "maximum", "limits"),
    [
        (0, 2, "must be at least 0 and at most 2"),
        (3, None, "must be at least 3"),
        (None, 2, "must be at most 2"),
        (None, None, "must be a finite number"),
    ],
)
def test_out_of_range_has_the_existing_limits(
    minimum: float | None, maximum: float | None, limits: str
) -> None:
    error = errors.OutOfRange(field="top_p", value=2.5, minimum=minimum, maximum=maximum)

    assert error.message == f"Invalid 'top_p': {limits}, got 2.5."
    assert ("minimum" in error.metadata, "maximum" in error.metadata) == (
        minimum is not None,
        maximum is not None,
    )


def test_a_protobuf_float_is_formatted_briefly() -> None:
    """0.1, not 0.10000000149011612."""
    error = errors.OutOfRange(field="min_p", value=0.10000000149011612, maximum=0.05)

    assert error.metadata["value"] == "0.1"


def test_json_errors_name_the_field_unless_it_is_the_body() -> None:
    """For the body the message is OpenAI's."""
    body = errors.InvalidJson(problem="line 1")
    inside = errors.InvalidJson(field="tools[0].parameters", problem="line 1")

    assert body.message == "We could not parse the JSON body of your request. (line 1)"
    assert body.field is None
    assert inside.message == "The JSON of 'tools[0].parameters' cannot be parsed: line 1"


def test_braces_in_a_value_are_not_formatted() -> None:
    """Values come from callers."""
    error = errors.InvalidField(field="{problem}", problem="{field.__class__}")

    assert error.message == "Invalid '{problem}': {field.__class__}"


def test_lone_surrogates_are_replaced() -> None:
    """JSON allows them, protobuf does not."""
    assert errors.ModelNotFound(model="a\ud800b").metadata == {"model": "a?b"}


def test_long_values_are_truncated_at_a_character() -> None:
    """So that the trailers stay below 8 KiB."""
    error = errors.InvalidField(field="é" * 300, problem="x" * 10_000)

    assert len(error.metadata["field"].encode()) <= MAX_VALUE_BYTES
    assert error.metadata["field"].endswith("é…")
    assert len(error.metadata["problem"]) == MAX_VALUE_BYTES - 2
    assert len(error.message.encode()) <= MAX_MESSAGE_BYTES


def test_errors_are_compared_by_value() -> None:
    """By class, metadata and retry_after."""
    one = errors.QueueFull(bound="tokens", depth=9, limit=60, retry_after=1)

    assert one == errors.QueueFull(bound="tokens", depth=9, limit=60, retry_after=1)
    assert one != errors.QueueFull(bound="tokens", depth=9, limit=60, retry_after=2)
    assert one != errors.QueueFull(bound="tokens", depth=9, limit=61, retry_after=1)
    assert one != "QUEUE_FULL"
    assert len({one, errors.QueueFull(bound="tokens", depth=9, limit=60, retry_after=1)}) == 1


def test_retryable_kinds_have_a_retry_delay() -> None:
    """RESOURCE_EXHAUSTED and UNAVAILABLE have a default one."""
    assert errors.Draining().retry_after == 1.0
    assert errors.QueueFull(bound="tokens", depth=9, limit=60).retry_after == 1.0
    assert errors.ApiKeyMissing().retry_after is None


@pytest.mark.parametrize(("given", "kept"), [(0.12345, 0.123), (-1.0, 0.0), (float("nan"), None)])
def test_retry_after_is_rounded_to_milliseconds(given: float, kept: float | None) -> None:
    """So that it is unchanged by encoding."""
    assert errors.Draining(retry_after=given).retry_after == kept


@pytest.mark.parametrize("values", [{}, {"model": "m", "color": "red"}])
def test_wrong_arguments_raise_type_error(values: dict[str, str]) -> None:
    """Missing and misspelled keys."""
    with pytest.raises(TypeError, match=r"ModelNotFound\(\)"):
        errors.ModelNotFound(**values)


def test_repr_is_one_line() -> None:
    """With class, reason and message."""
    assert repr(errors.Draining()) == (
        "Draining(DRAINING, 'The server is shutting down. Retry the request.')"
    )
