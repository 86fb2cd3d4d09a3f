"""Queries of file lists."""

import pytest
from corral.control.v1 import file_pb2

from dialects.openai.resources.files import list_files_request
from svc_kit.errors import InvalidField, OutOfRange


def test_files_can_be_listed_by_any_purpose() -> None:
    """Including those of output files."""
    for purpose, expected in (
        ("batch", file_pb2.FILE_PURPOSE_BATCH),
        ("batch_output", file_pb2.FILE_PURPOSE_BATCH_OUTPUT),
    ):
        assert list_files_request({"purpose": purpose}).purpose == expected


def test_an_unknown_purpose_is_rejected() -> None:
    """The error lists the supported values."""
    with pytest.raises(InvalidField) as caught:
        list_files_request({"purpose": "nope"})

    assert caught.value.field == "purpose"
    assert "'evals'" in caught.value.message
    assert "'batch_output'" in caught.value.message


def test_a_negative_limit_is_out_of_range() -> None:
    """It is parsed as a number."""
    with pytest.raises(OutOfRange) as caught:
        list_files_request({"limit": "-1"})

    assert (caught.value.field, caught.value.value) == ("limit", -1)
