"""Time-ordered, unguessable ids with a prefix for their type.

A list ordered by id is ordered by creation time, and the id of a deleted object is a valid cursor.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final

FILE: Final = "file-"
UPLOAD: Final = "upload_"
PART: Final = "part_"
JOB: Final = "job_"
KEY: Final = "key_"
AUDIT_EVENT: Final = "audit_"
ADAPTER: Final = "adapter_"
BATCH: Final = "batch_"
RUN: Final = "run_"
STEP: Final = "step_"
RESPONSE: Final = "resp_"
VECTOR_STORE: Final = "vs_"
VECTOR_STORE_BATCH: Final = "vsfb_"
VECTOR_STORE_ENTRY: Final = "vsf_"
ASSISTANT: Final = "asst_"
THREAD: Final = "thread_"
CONVERSATION: Final = "conv_"
MAX_KEY_CHARACTERS: Final = 64
"""Maximum length of an id in the database."""
_TIME_DIGITS: Final = 14  # microseconds since 1970, until the year 4253
_RANDOM_BYTES: Final = 9
_SUFFIX_DIGITS: Final = _TIME_DIGITS + 2 * _RANDOM_BYTES
_SUFFIX: Final = re.compile(rf"[0-9a-f]{{{_SUFFIX_DIGITS}}}")
_IDS_PER_QUERY: Final = 500


class IdSource:
    """Generates ids, which are strictly increasing."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._clock = clock
        self._random = random
        self._last = 0

    def new(self, prefix: str) -> str:
        self._last = max(round(self._clock().timestamp() * 1_000_000), self._last + 1)
        return f"{prefix}{self._last:0{_TIME_DIGITS}x}{self._random(_RANDOM_BYTES).hex()}"


def creation_key(object_id: str) -> str:
    """The part of an id that orders ids of all types by time; empty for an invalid id."""
    suffix = object_id[-_SUFFIX_DIGITS:]
    return suffix if _SUFFIX.fullmatch(suffix) else ""


def is_id(text: str, prefix: str) -> bool:
    """Whether a text is a well-formed id with this prefix."""
    return text.startswith(prefix) and _SUFFIX.fullmatch(text, len(prefix)) is not None


def id_batches(ids: Iterable[str]) -> Iterator[list[str]]:
    """The well-formed ids (databases reject some characters of others), in batches for one query
    each."""
    valid = [each for each in ids if creation_key(each)]
    for first in range(0, len(valid), _IDS_PER_QUERY):
        yield valid[first : first + _IDS_PER_QUERY]
