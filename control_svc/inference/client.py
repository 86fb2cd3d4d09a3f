"""Metadata and error translation of calls to the inference service."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from svc_kit.auth.authenticator import ServiceToken, principal_metadata
from svc_kit.auth.principal import Principal, Priority
from svc_kit.auth.scopes import Scope
from svc_kit.rpc.client import translate_errors

SERVICE: Final = "inference"
Metadata = Sequence[tuple[str, str]]


def call_metadata(
    token: ServiceToken | None, project: str, priority: Priority, key_id: str
) -> Metadata:
    """The metadata of a call on behalf of a project; `key_id` names the kind of work in logs.
    Without a token the service must accept callers without a key.
    """
    if token is None:
        return ()
    principal = Principal(
        project=project, scopes=frozenset({Scope.INFERENCE}), priority=priority, key_id=key_id
    )
    return (("authorization", f"Bearer {token.secret}"), *principal_metadata(principal))


@contextmanager
def stream_messages(calling: Any) -> Iterator[AsyncIterator[Any]]:
    """The messages of a stream; left early, also by a cancellation, the call is cancelled.

    Raises the service's errors.
    """
    try:
        with translate_errors(SERVICE):
            yield calling.__aiter__()
    finally:
        calling.cancel()
