"""Lists of files, as clients ask for them."""

import pytest
from corral.control.v1 import file_pb2

from openai_wire.resources.files import list_files_request
from svc_kit.errors import InvalidField, OutOfRange


def test_a_list_is_of_any_purpose_a_file_can_have() -> None:
    """Also of those that only the server writes."""
    for purpose, expected in (
        ("batch", file_pb2.FILE_PURPOSE_BATCH),
        ("batch_output", file_pb2.FILE_PURPOSE_BATCH_OUTPUT),
    ):
        assert list_files_request({"purpose": purpose}).purpose == expected


def test_an_unknown_purpose_is_the_purposes_fault() -> None:
    """Its error says which there are, all of them."""
    with pytest.raises(InvalidField) as caught:
        list_files_request({"purpose": "nope"})

    assert caught.value.field == "purpose"
    assert "'evals'" in caught.value.message
    assert "'batch_output'" in caught.value.message


def test_a_number_below_the_least_is_a_number() -> None:
    """In a query as in a body."""
    with pytest.raises(OutOfRange) as caught:
        list_files_request({"limit": "-1"})

    assert (caught.value.field, caught.value.value) == ("limit", -1)
