"""What the log says while the control service cannot verify callers."""

from typing import Any, cast

import grpc
import grpc.aio
import pytest
from corral.control.v1.key_service_pb2 import VerifyKeyResponse

from svc_kit.auth.control_keys import control_key_lookup
from svc_kit.errors import UpstreamUnavailable

REFUSED = grpc.StatusCode.PERMISSION_DENIED
HANGS = grpc.StatusCode.DEADLINE_EXCEEDED
AWAY = grpc.StatusCode.UNAVAILABLE
OK = grpc.StatusCode.OK


class ScriptedChannel:
    def __init__(self, *statuses: grpc.StatusCode) -> None:
        self._statuses = iter(statuses)

    def unary_unary(self, *_args: Any, **_options: Any) -> Any:
        """All methods end alike."""
        return self._call

    async def _call(self, *_args: Any, **_options: Any) -> VerifyKeyResponse:
        if (status := next(self._statuses)) is not OK:
            none = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(status, none, none, "no")
        return VerifyKeyResponse()


@pytest.mark.parametrize(
    ("statuses", "num_lines"),
    [
        ([HANGS, AWAY, HANGS], 0),
        ([REFUSED, REFUSED, REFUSED], 1),
        ([REFUSED, HANGS, REFUSED], 1),
        ([REFUSED, OK, REFUSED], 2),
    ],
)
async def test_a_refusal_is_logged_once_and_an_outage_is_not(
    statuses: list[grpc.StatusCode], num_lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The callers get the error of an outage in any case."""
    look_up = control_key_lookup(cast(Any, ScriptedChannel(*statuses)))
    outcomes = []
    for _ in statuses:
        try:
            await look_up("digest")
            outcomes.append(OK)
        except UpstreamUnavailable:
            outcomes.append(AWAY)

    assert outcomes == [OK if status is OK else AWAY for status in statuses]
    assert caplog.text.count("cannot verify callers") == num_lines
