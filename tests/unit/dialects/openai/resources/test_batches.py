"""Batches between OpenAI's JSON and protos."""

from typing import Any

import pytest
from corral.control.v1 import batch_pb2

from dialects.openai.resources.batches import (
    batch_object,
    create_batch_request,
    list_batches_request,
)
from dialects.openai.shared.objects import list_object
from svc_kit.errors import DomainError

BODY = {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}


def test_a_body_is_converted() -> None:
    """Unset fields stay unset."""
    request = create_batch_request(
        {
            **BODY,
            "metadata": {"k": "v"},
            "output_expires_after": {"anchor": "created_at", "seconds": 3600},
        },
        "r",
    )

    assert (request.input_file_id, request.endpoint) == ("file-1", "/v1/embeddings")
    assert request.completion_window.seconds == 24 * 3600
    assert (dict(request.metadata), request.output_ttl.seconds) == ({"k": "v"}, 3600)
    assert request.request_id == "r"
    assert not create_batch_request(BODY, "").HasField("output_ttl")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"input_file_id": None}, "input_file_id"),
        ({"endpoint": 1}, "endpoint"),
        ({"completion_window": "24"}, "completion_window"),
        ({"completion_window": "1.5h"}, "completion_window"),
        ({"completion_window": "-1h"}, "completion_window"),
        ({"completion_window": "9" * 30 + "h"}, "completion_window"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        (
            {"output_expires_after": {"anchor": "now", "seconds": 3600}},
            "output_expires_after.anchor",
        ),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_invalid_batches_are_rejected(changed: dict[str, Any], field: str) -> None:
    """The error has the body's field name."""
    with pytest.raises(DomainError) as refused:
        create_batch_request({**BODY, **changed}, "")

    assert refused.value.field == field


def test_a_list_query_is_converted() -> None:
    """Unknown parameters are ignored."""
    request = list_batches_request({"limit": "5", "after": "batch_1", "order": "asc"})

    assert (request.page_size, request.after) == (5, "batch_1")
    with pytest.raises(DomainError, match="limit"):
        list_batches_request({"limit": "101"})


def test_a_new_batch_has_every_key() -> None:
    """Unknown values are null."""
    batch = batch_pb2.Batch(id="batch_1", state=batch_pb2.Batch.STATE_VALIDATING)
    batch.completion_window.seconds = 3600
    shown = batch_object(batch)

    assert (shown["object"], shown["status"], shown["completion_window"]) == (
        "batch",
        "validating",
        "1h",
    )
    for name in ("model", "errors", "output_file_id", "error_file_id", "metadata", "completed_at"):
        assert shown[name] is None
    assert shown["request_counts"] == {"total": 0, "completed": 0, "failed": 0}


def test_a_failed_batch_has_its_errors() -> None:
    """Errors of the whole file have no line."""
    errors = [
        batch_pb2.BatchError(code="invalid_url", message="m", param="url", line=2),
        batch_pb2.BatchError(code="empty_file", message="m"),
    ]
    shown = batch_object(batch_pb2.Batch(state=batch_pb2.Batch.STATE_FAILED, errors=errors))

    assert shown["errors"] == {
        "object": "list",
        "data": [
            {"code": "invalid_url", "message": "m", "param": "url", "line": 2},
            {"code": "empty_file", "message": "m", "param": None, "line": None},
        ],
    }


def test_a_page_has_first_and_last_id() -> None:
    """Null if it is empty."""
    batches = [batch_pb2.Batch(id="batch_2"), batch_pb2.Batch(id="batch_1")]
    page = list_object(batches, batch_object, "next")
    empty = list_object([], batch_object)

    assert (page["first_id"], page["last_id"], page["has_more"]) == ("batch_2", "batch_1", True)
    assert (empty["first_id"], empty["last_id"], empty["has_more"]) == (None, None, False)
