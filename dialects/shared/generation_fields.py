"""Fields of generations that all dialects limit alike."""

import hashlib
from typing import Annotated

from corral.inference.v1.generation_pb2 import CacheOptions, OutputOptions, StoppingParams

from svc_kit.rpc.field_limits import limit, limit_of

StopText = Annotated[str, limit(StoppingParams, "stop[]")]
StopTexts = Annotated[list[StopText], limit(StoppingParams, "stop")]
TopLogprobs = Annotated[int, limit(OutputOptions, "top_logprobs")]


def shorten(text: str) -> str:
    """Replace a text that is too long for a salt or an affinity by its digest."""
    raw, most = text.encode(), limit_of(CacheOptions, "salt").max_bytes
    return text if len(raw) <= most else hashlib.sha256(raw).hexdigest()
