"""How the engines of a name are used: `token_mode`, with token ids, or `text_mode`, without."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from inference_svc.engine.sequence import Sequence
from inference_svc.engine_client.features import Features
from inference_svc.upstream.endpoint import Endpoint
from inference_svc.upstream.engine_api import EngineInfo, InfoApi
from inference_svc.upstream.probe import Identity
from inference_svc.upstream.upstream_turn import ServedModel, Turn


class Examined(NamedTuple):
    """What is behind a URL. `features` asks what it honours, and raises `EngineFault`; `turn` makes
    a turn at it."""

    api: InfoApi
    info: EngineInfo
    identity: Identity
    features: Callable[[], Awaitable[Features]]
    turn: Callable[[Sequence, ServedModel], Turn]


class Mode(Protocol):
    """Finds out what the engines of a name are. `default_context` is that of a sequence where they
    do not tell it, in tokens."""

    default_context: int

    async def examine(self, endpoint: Endpoint) -> Examined:
        """Ask an engine what it is. Raises `EngineFault`."""
