"""Media types."""

import pytest

from gateway.http.json_body import check_media_type
from svc_kit.errors import UnsupportedMediaType


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/problem+json",
        "application/json; version=1",
    ],
)
def test_json_is_accepted(content_type: str) -> None:
    """In UTF-8."""
    check_media_type(content_type)


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "text/json",
        "text/plain+json",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonp",
        "application/json; charset=utf-16",
        "application/json, text/plain",
    ],
)
def test_other_media_types_are_rejected(content_type: str) -> None:
    """The error has the content type."""
    with pytest.raises(UnsupportedMediaType) as caught:
        check_media_type(content_type)

    assert caught.value.media_type == content_type
