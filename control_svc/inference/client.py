"""Metadata and error translation of calls to the inference service."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from svc_kit.auth.authenticator import ServiceToken, principal_metadata
from svc_kit.auth.principal import Principal, Priority, current_key
from svc_kit.auth.scopes import Scope
from svc_kit.rpc.client import translate_errors
from svc_kit.tracing.span import trace_metadata

SERVICE: Final = "inference"
Metadata = Sequence[tuple[str, str]]


def call_metadata(token: ServiceToken | None, project: str, priority: Priority) -> Metadata:
    """Return the metadata of a call on behalf of a project, and of the key of the running call or
    job.

    Without a token no identity is sent, and the service must accept callers without a key.
    """
    if token is None:
        return trace_metadata()
    principal = Principal(
        project=project,
        scopes=frozenset({Scope.INFERENCE}),
        priority=priority,
        key_id=current_key(),
    )
    bearer = ("authorization", f"Bearer {token.secret}")
    return (bearer, *principal_metadata(principal), *trace_metadata())


@contextmanager
def stream_messages(call: Any) -> Iterator[AsyncIterator[Any]]:
    """Iterate over the messages of a streaming call, and cancel the call on exit.

    Raises the service's errors.
    """
    try:
        with translate_errors(SERVICE):
            yield aiter(call)
    finally:
        call.cancel()
