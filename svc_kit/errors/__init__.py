"""Every way a request can fail, as one tree of exceptions.

The standard library is all these classes need, so that the engine and the domain may raise them
without knowing of gRPC or HTTP; `svc_kit.errors.status` maps them to both.

    DomainError
    ├── InvalidArgument      the request is wrong, whatever the state of the server
    ├── FailedPrecondition   the request is right, the state of the server is not
    ├── Unauthenticated      who calls is not known
    ├── PermissionDenied     who calls is known and may not
    ├── NotFound             the named thing does not exist
    ├── AlreadyExists        the name is taken
    ├── Aborted              a conflict with something concurrent; try again
    ├── ResourceExhausted    a bound is reached; try again later
    ├── Cancelled            the caller or an operator ended it
    ├── DeadlineExceeded     the time is over
    ├── Unavailable          not now; try again later
    ├── Unimplemented        not in this release
    └── Internal             a defect of ours

Below each kind stand the concrete classes, one for each value of `corral.error.v1.ErrorReason`; a
module of this package holds those of one area, and everybody imports them from here. The docstring
of a concrete class is its message, with the metadata as placeholders; its annotations are the
metadata keys.
"""

from collections.abc import Iterator
from typing import Final

from svc_kit.errors.access import *
from svc_kit.errors.adapters import *
from svc_kit.errors.assistants import *
from svc_kit.errors.domain_error import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
from svc_kit.errors.domain_error import MAX_VALUE_BYTES as MAX_VALUE_BYTES
from svc_kit.errors.domain_error import DomainError as DomainError
from svc_kit.errors.files import *
from svc_kit.errors.kinds import *
from svc_kit.errors.models import *
from svc_kit.errors.requests import *
from svc_kit.errors.responses import *
from svc_kit.errors.service import *


def _concrete(cls: type[DomainError]) -> Iterator[type[DomainError]]:
    for child in cls.__subclasses__():
        if "reason" in vars(child):
            yield child
        yield from _concrete(child)


ERROR_CLASSES: Final[tuple[type[DomainError], ...]] = tuple(_concrete(DomainError))
"""Every concrete class: one for each value of `ErrorReason`."""
