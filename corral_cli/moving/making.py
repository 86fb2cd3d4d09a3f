"""Objects that an import makes once: each by a request that is named after what it was, and after
what it is to be.

That closes the gap between an object and its line in the id map: one that was made is not made
again.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from corral_cli.moving.server import CALL_S
from svc_kit.errors import NotFound
from svc_kit.rpc_client import translate_errors

ResultT = TypeVar("ResultT")


async def made_once(
    method: Callable[..., Awaitable[Any]], request: Any, old: str, missing: type[NotFound]
) -> Any:
    """The answer of a call that makes what an object of the export becomes; `missing` is what it
    raises where an object that it has made is not there any more."""

    async def make(request_id: str) -> Any:
        request.request_id = request_id
        return await method(request, timeout=CALL_S)

    return await named_once(make, old, request, missing)


async def named_once(
    make: Callable[[str], Awaitable[ResultT]], old: str, about: Any, missing: type[NotFound]
) -> ResultT:
    """As `made_once`, for calls of another form: `make` is given the name of the request, which
    says what `about` does."""
    name = old.encode() + about.SerializeToString(deterministic=True)
    num_deleted = 0
    while True:
        digest = hashlib.sha256(b"%d %b" % (num_deleted, name)).hexdigest()
        try:
            with translate_errors():
                return await make(f"import {digest}")
        except missing:
            # A request of this name made it not long ago, and it has been deleted since.
            num_deleted += 1
