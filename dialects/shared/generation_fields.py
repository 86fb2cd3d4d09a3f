"""Fields of generations that all dialects limit alike, and options that they set alike."""

import hashlib
from typing import Annotated, Final

from corral.inference.v1.generation_pb2 import CacheOptions, OutputOptions, StoppingParams
from corral.inference.v1.inference_service_pb2 import ChatRequest, GenerateRequest

from svc_kit.rpc.field_limits import limit, limit_of

StopText = Annotated[str, limit(StoppingParams, "stop[]")]
StopTexts = Annotated[list[StopText], limit(StoppingParams, "stop")]
TopLogprobs = Annotated[int, limit(OutputOptions, "top_logprobs")]
_INTERVAL_MS: Final = 250


def shorten(text: str) -> str:
    """Replace a text that is too long for a salt or an affinity by its digest."""
    raw, most = text.encode(), limit_of(CacheOptions, "salt").max_bytes
    return text if len(raw) <= most else hashlib.sha256(raw).hexdigest()


def gather_output(request: ChatRequest | GenerateRequest) -> None:
    """Let the tokens of an answer that is sent whole come in few messages. Its last ones come at
    once."""
    request.options.output.interval_ms = _INTERVAL_MS
