"""Requests that are told apart by an id of the caller's, so that one sent twice is done once."""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from svc_kit.errors import RequestIdReused

REMEMBERED_FOR: Final = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class RememberedRequest:
    """A request that was carried out."""

    method: str
    request_id: str
    fingerprint: str
    """Of everything that the request said."""
    resource_id: str
    """What it made."""
    created_at: datetime

    def check_same(self, fingerprint: str) -> None:
        """Raises RequestIdReused for a request that says something else."""
        if self.fingerprint != fingerprint:
            raise RequestIdReused(field="request_id", request_id=self.request_id)


def fingerprint_of(*facts: object) -> str:
    """Tells one request from another."""
    text = "".join(f"{len(str(fact))}:{fact}" for fact in facts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
