"""All errors as one tree of exceptions: `DomainError`, its kinds (`kinds.py`), and a concrete class
for each value of `corral.error.v1.ErrorReason`. Import them from here.

The name of a concrete class is its reason, its docstring the message, with metadata as
placeholders; its annotations are the metadata keys. `field` names the request field at fault. The
classes need only the standard library, so that the engine and the domain can raise them;
`svc_kit.errors.status` maps them to gRPC and HTTP.
"""

from collections.abc import Iterator
from typing import Final

from svc_kit.errors.access import *
from svc_kit.errors.adapters import *
from svc_kit.errors.assistants import *
from svc_kit.errors.domain_error import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
from svc_kit.errors.domain_error import MAX_VALUE_BYTES as MAX_VALUE_BYTES
from svc_kit.errors.domain_error import DomainError as DomainError
from svc_kit.errors.domain_error import release_frames as release_frames
from svc_kit.errors.files import *
from svc_kit.errors.kinds import *
from svc_kit.errors.limits import *
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
"""One class for each value of `ErrorReason`."""
