"""Calls the control service for shares, and keeps the limits in a file."""

import logging
from pathlib import Path
from typing import Final

import grpc
from corral.control.v1 import limit_service_pb2 as pb
from corral.control.v1.limit_service_pb2_grpc import LimitServiceStub
from google.protobuf.message import DecodeError

from inference_svc.limits.limiter import Lease
from svc_kit.local_files import atomic_file
from svc_kit.rpc.client import translate_errors

_log = logging.getLogger(__name__)
_TIMEOUT_S: Final = 5.0
"""With the interval of renewals less than the lease; requests do not wait that long."""


def make_lease(channel: grpc.aio.Channel, timeout_s: float = _TIMEOUT_S) -> Lease:
    """Return a function that leases shares over a channel with the service token. A call that takes
    longer than `timeout_s` fails."""
    stub = LimitServiceStub(channel)

    async def lease(request: pb.LeaseLimitsRequest) -> pb.LeaseLimitsResponse:
        with translate_errors("control"):
            return await stub.LeaseLimits(request, timeout=timeout_s)

    return lease


class LimitsFile:
    """The limits in a file, so that a process that starts while control is away enforces them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> pb.LeaseLimitsResponse | None:
        """Return what was written; None if there is nothing."""
        try:
            return pb.LeaseLimitsResponse.FromString(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, DecodeError) as error:
            _log.error("the limits in %s cannot be read: %s", self._path, error)
            return None

    def write(self, limits: pb.LeaseLimitsResponse) -> None:
        """Replace the file."""
        try:
            with atomic_file(self._path) as file:
                file.write(limits.SerializeToString())
        except OSError as error:
            _log.error("the limits cannot be kept in %s: %s", self._path, error)
