"""Queries of file lists."""

import pytest
from corral.control.v1 import file_pb2

from dialects.openai.resources.files import list_files_request
from svc_kit.errors import InvalidField, OutOfRange


def test_files_can_be_listed_by_any_purpose() -> None:
    """Including those of output files."""
    request = list_files_request({"purpose": "batch_output"})
    assert request.purpose == file_pb2.FILE_PURPOSE_BATCH_OUTPUT


def test_unknown_purposes_and_negative_limits_are_rejected() -> None:
    """The error of a purpose lists the supported values."""
    with pytest.raises(InvalidField, match=r"'evals'.*'batch_output'|'batch_output'.*'evals'"):
        list_files_request({"purpose": "nope"})
    with pytest.raises(OutOfRange, match=r"'limit'.*-1"):
        list_files_request({"limit": "-1"})
