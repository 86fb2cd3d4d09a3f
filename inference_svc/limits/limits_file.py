"""Keeps the limits of projects and keys in a file."""

import logging
from pathlib import Path

from corral.control.v1 import limit_service_pb2 as pb
from google.protobuf.message import DecodeError

from svc_kit.local_files import atomic_file

_log = logging.getLogger(__name__)


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
        try:
            with atomic_file(self._path) as file:
                file.write(limits.SerializeToString())
        except OSError as error:
            _log.error("the limits cannot be kept in %s: %s", self._path, error)
