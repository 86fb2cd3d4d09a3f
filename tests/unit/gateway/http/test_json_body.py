"""Media types."""

import pytest

from gateway.http.json_body import check_media_type
from svc_kit.errors import UnsupportedMediaType


@pytest.mark.parametrize(
    "given",
    [
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/problem+json",
        "application/json; version=1",
    ],
)
def test_json_passes(given: str) -> None:
    """JSON in UTF-8, however it is written."""
    check_media_type(given)


@pytest.mark.parametrize(
    "given",
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
def test_everything_else_is_refused(given: str) -> None:
    """The refusal names what was sent."""
    with pytest.raises(UnsupportedMediaType) as caught:
        check_media_type(given)

    assert caught.value.media_type == given
