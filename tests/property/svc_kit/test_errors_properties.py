"""Errors are unchanged after encoding, for all values."""

import pickle
import types
import typing
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc_kit.errors import ERROR_CLASSES, KINDS, DomainError
from svc_kit.errors.status import from_rpc_error, openai_error, to_status
from tests.support.examples import examples

TEXTS = st.text(st.characters(), max_size=1500)
NUMBERS = st.integers(-(2**63), 2**63)
RETRY_AFTER = st.none() | st.floats(0, 1e6)


def metadata_values(annotation: Any) -> st.SearchStrategy[Any]:
    if isinstance(annotation, types.UnionType):
        return st.one_of([metadata_values(option) for option in typing.get_args(annotation)])
    strategies: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXTS,
        int: NUMBERS,
        float: st.floats() | NUMBERS,
        type(None): st.none(),
    }
    return strategies[annotation]


def errors_of_class(cls: type[DomainError]) -> st.SearchStrategy[DomainError]:
    keys = {key: metadata_values(annotation) for key, annotation in cls._keys.items()}
    if "retry_after" in keys:
        keys["retry_after"] = RETRY_AFTER
    return st.builds(cls, **keys)


def foreign_errors() -> st.SearchStrategy[DomainError]:
    """Generate errors with unknown reasons, as from another release."""
    make = st.sampled_from([kind.with_reason for kind in KINDS])
    reason = st.text("ABCDEFGHIJ_", min_size=1, max_size=60).map("NEW_".__add__)
    metadata = st.dictionaries(st.text("abc_", min_size=1), TEXTS, max_size=4)
    return st.builds(
        lambda make, **values: make(**values),
        make,
        reason=reason,
        message=TEXTS,
        metadata=metadata,
        retry_after=RETRY_AFTER,
    )


def send_over_grpc(error: DomainError) -> DomainError:
    """Encode an error as gRPC status and trailers, and decode it."""
    code, details, trailers = to_status(error, "req_1")
    received = grpc.aio.Metadata(*trailers)
    return from_rpc_error(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), received, details))


@pytest.mark.parametrize("cls", ERROR_CLASSES, ids=lambda cls: cls.reason)
@settings(max_examples=examples(20))
@given(data=st.data())
def test_an_error_is_unchanged_over_grpc(cls: type[DomainError], data: st.DataObject) -> None:
    """Including its message and its OpenAI form."""
    error = data.draw(errors_of_class(cls))
    received = send_over_grpc(error)

    assert received == error
    assert received.message == error.message
    assert openai_error(received) == openai_error(error)


@given(foreign_errors())
def test_an_error_of_another_release_is_unchanged_over_grpc(error: DomainError) -> None:
    """Including its unknown reason."""
    received = send_over_grpc(error)

    assert received == error
    assert received.message == error.message


@given(st.sampled_from(ERROR_CLASSES).flatmap(errors_of_class) | foreign_errors())
def test_an_error_can_be_pickled(error: DomainError) -> None:
    """As for transfer from the engine process."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes

    assert copy == error
    assert (copy.message, vars(copy)) == (error.message, vars(error))


@given(st.sampled_from(ERROR_CLASSES).flatmap(errors_of_class) | foreign_errors())
def test_trailers_are_below_8_kib(error: DomainError) -> None:
    """The default limit of peers, which includes the percent-encoded message."""
    _, message, trailers = to_status(error, "req_" + "0" * 24)
    encoded = "".join(
        c if " " <= c <= "~" and c != "%" else "%XX" * len(c.encode()) for c in message
    )
    binary = sum(len(value) * 4 / 3 for _, value in trailers if isinstance(value, bytes))

    assert len(encoded) + binary < 8 * 1024 - 512
