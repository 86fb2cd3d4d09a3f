"""Readiness of the gateway, for probes on the management listener."""

import asyncio
from collections.abc import Sequence

from gateway.active_calls import ActiveCalls
from gateway.rpc import RpcClient
from svc_kit.errors import DomainError


class Readiness:
    """Decides whether this gateway should get requests.

    It is ready once each of `services` has been SERVING, so that a new gateway with a wrong target
    or a refused certificate replaces no working one. From then on one service suffices: while the
    other is away, every gateway still answers a part of the requests, and the rest with errors that
    tell clients when to try again. A gateway that reaches none of them, or drains, is not ready.
    """

    def __init__(self, services: Sequence[RpcClient], active_calls: ActiveCalls) -> None:
        self._services = services
        self._not_reached = {each.service for each in services}
        self._active_calls = active_calls

    async def is_ready(self) -> bool:
        """Check the services. Takes at most PROBE_TIMEOUT_S."""
        if self._active_calls.closing:
            return False
        checks = await asyncio.gather(*map(_is_serving, self._services))
        serving = {each.service for each, ok in zip(self._services, checks, strict=True) if ok}
        self._not_reached -= serving
        return bool(serving) and not self._not_reached


async def _is_serving(service: RpcClient) -> bool:
    try:
        await service.check_serving()
    except DomainError:
        return False
    return True
