"""A look at the URLs of an upstream, without its vocabulary: whether they answer, and as what."""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from inference_svc.upstream.endpoint import Endpoint
from inference_svc.upstream.engine_api import EngineInfo
from inference_svc.upstream.faults import AnswerInvalid, EngineFault, EngineLost
from inference_svc.upstream.openai import OpenAi
from inference_svc.upstream.probe import Ask, detect
from inference_svc.upstream.target import UpstreamTarget
from inference_svc.upstream.token_mode import TOKEN_KINDS

_PATIENCE_S: Final = 10.0


class Inspection(NamedTuple):
    """What is behind a URL: the kind of the engine and what it tells, or why it cannot be used.
    `certificate_end` is in seconds since 1970, None without TLS."""

    url: str
    found: tuple[str, EngineInfo] | EngineFault
    certificate_end: int | None


async def inspect(target: UpstreamTarget, *, in_text_mode: bool) -> list[Inspection]:
    """Ask all URLs at once, each for at most 10 s."""
    kinds: Mapping[str, Ask] = {"openai": OpenAi().info} if in_text_mode else TOKEN_KINDS
    return await asyncio.gather(*(_inspect(target, url, kinds) for url in target.urls))


async def _inspect(target: UpstreamTarget, url: str, kinds: Mapping[str, Ask]) -> Inspection:
    endpoint = Endpoint(target, url, lambda _: asyncio.sleep(0))
    try:
        async with asyncio.timeout(_PATIENCE_S):
            found: tuple[str, EngineInfo] | EngineFault = await _ask(endpoint, target, kinds)
    except EngineFault as fault:
        found = fault
    except TimeoutError:
        found = EngineLost(f"it did not answer within {_PATIENCE_S:g} s")
    finally:
        endpoint.close()
    return Inspection(url, found, endpoint.certificate_end)


async def _ask(
    endpoint: Endpoint, target: UpstreamTarget, kinds: Mapping[str, Ask]
) -> tuple[str, EngineInfo]:
    """Raises `EngineFault`; where another kind answers than the configured one, with that."""
    wanted = {kind: ask for kind, ask in kinds.items() if target.kind in ("auto", kind)}
    try:
        return await detect(endpoint, wanted, target)
    except AnswerInvalid:
        others = {kind: ask for kind, ask in kinds.items() if kind not in wanted}
        if not others:
            raise
        kind, _ = await detect(endpoint, others, target)
        raise AnswerInvalid(f"it answers as {kind}, not as {target.kind}") from None
