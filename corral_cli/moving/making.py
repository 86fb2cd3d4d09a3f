"""Objects that an import makes once: each by a request that is named after what it was.

That closes the gap between an object and its line in the id map: one that was made is not made
again.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from corral_cli.moving.server import CALL_S
from svc_kit.errors import NotFound
from svc_kit.rpc_client import translate_errors


async def made_once(
    method: Callable[..., Awaitable[Any]], request: Any, old: str, missing: type[NotFound]
) -> Any:
    """The answer of a call that makes what an object of the export becomes; `missing` is what it
    raises where an object that it has made is not there any more."""
    num_deleted = 0
    while True:
        request.request_id = request_id_of(old, num_deleted)
        try:
            with translate_errors():
                return await method(request, timeout=CALL_S)
        except missing:
            # A request of this name made it not long ago, and it has been deleted since.
            num_deleted += 1


def request_id_of(old: str, num_deleted: int = 0) -> str:
    """The name of the request that makes an object, by the object's old id."""
    name = f"{old} {num_deleted}" if num_deleted else old
    return f"import {hashlib.sha256(name.encode()).hexdigest()}"
