"""What a fault of an engine means for the request: it is sent again, or it ends with an error."""

from typing import Final

from inference_svc.upstream.endpoint import Endpoint
from inference_svc.upstream.faults import (
    MAX_OVERLOAD_S,
    AnswerInvalid,
    EngineFault,
    EngineOverloaded,
    RequestFailed,
    RequestRefused,
)
from inference_svc.upstream.upstream_turn import Turn
from svc_kit.errors import (
    DecodeFailed,
    DomainError,
    EngineCrashed,
    EngineRestarting,
    UpstreamUnavailable,
)

MAX_LOST: Final = 3
"""Engines that a request may lose, before it is thought to be the reason."""
MAX_FAILED: Final = 2
"""Errors with which engines may answer a request, before it is thought to be the reason."""


def judge(
    turn: Turn, endpoint: Endpoint, fault: EngineFault, now: float, service: str
) -> DomainError | None:
    """Count the fault; return the error with which the request ends, None if it is sent again.

    `service` is the name of the upstream in errors.
    """
    failed = DecodeFailed(request_id=turn.sequence.request.request_id)
    if isinstance(fault, RequestRefused):
        return turn.refusal(fault)
    if isinstance(fault, EngineOverloaded):
        if turn.refused_at is None:
            turn.refused_at = now
        if now - turn.refused_at >= MAX_OVERLOAD_S:
            return UpstreamUnavailable(service=service, retry_after=fault.retry_after_s)
        turn.set_aside()
        return _unless_shown(turn)
    turn.refused_at = None
    if isinstance(fault, RequestFailed):
        turn.num_failed, turn.failed_at = turn.num_failed + 1, endpoint
        return failed if turn.num_failed >= MAX_FAILED else _unless_shown(turn)
    turn.num_lost += 1
    if turn.num_lost >= MAX_LOST:
        is_lie = isinstance(fault, AnswerInvalid)
        return failed if is_lie else EngineCrashed(times=turn.num_lost)
    return _unless_shown(turn)


def _unless_shown(turn: Turn) -> DomainError | None:
    return None if turn.can_go_on else EngineRestarting(phase="running")
