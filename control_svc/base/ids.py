"""Ids with a prefix for their type, random enough not to be guessed, and increasing with time.

A list ordered by id is ordered by creation, and the id of a deleted object still marks a place in a
list.
"""

import re
import secrets
from collections.abc import Callable
from datetime import datetime
from typing import Final

FILE: Final = "file-"
UPLOAD: Final = "upload_"
PART: Final = "part_"
JOB: Final = "job_"
KEY: Final = "key_"
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
"""The longest id that any table takes."""
_TIME_DIGITS: Final = 14  # microseconds since 1970, until the year 4253
_RANDOM_BYTES: Final = 9
_SUFFIX_DIGITS: Final = _TIME_DIGITS + 2 * _RANDOM_BYTES
_SUFFIX: Final = re.compile(rf"[0-9a-f]{{{_SUFFIX_DIGITS}}}")


class IdSource:
    """Makes ids; those of one source are strictly increasing."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._clock = clock
        self._random = random
        self._last = 0

    def new(self, prefix: str) -> str:
        """A new id that begins with `prefix`."""
        self._last = max(round(self._clock().timestamp() * 1_000_000), self._last + 1)
        return f"{prefix}{self._last:0{_TIME_DIGITS}x}{self._random(_RANDOM_BYTES).hex()}"


def creation_key(object_id: str) -> str:
    """What orders ids of different prefixes by time; empty for a text that is no id."""
    suffix = object_id[-_SUFFIX_DIGITS:]
    return suffix if _SUFFIX.fullmatch(suffix) else ""


def is_id(text: str, prefix: str) -> bool:
    """Whether a text has the form of an id with this prefix; the object need not exist."""
    return text.startswith(prefix) and _SUFFIX.fullmatch(text, len(prefix)) is not None
