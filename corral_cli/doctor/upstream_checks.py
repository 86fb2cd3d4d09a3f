"""Checks of the engines of others that the settings name: each URL is asked what it is."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

from corral_cli.doctor.findings import Finding, check_expiry, error, ok, warning
from inference_svc.config import InferenceSettings
from inference_svc.model_pool.engine_config import upstream_target
from inference_svc.upstream.faults import AnswerInvalid, EngineFault, EngineUnusable, TlsRefused
from inference_svc.upstream.inspection import Inspection, inspect
from inference_svc.upstream_settings import UpstreamSettings

_CHECK = "engines"


def check_upstreams(settings: InferenceSettings, now: datetime) -> Iterator[Finding]:
    """A finding for each URL; one that is away is a warning, since its model is served once it is
    there, and so is a certificate that expires soon."""
    inspected = asyncio.run(_inspect_all(settings))
    for (name, upstream), inspections in zip(settings.upstreams.items(), inspected, strict=True):
        for each in inspections:
            yield _describe(name, upstream, each)
            if each.certificate_end is not None:
                end = datetime.fromtimestamp(each.certificate_end, UTC)
                yield check_expiry(_CHECK, f"the certificate of {each.url}", end, now)


async def _inspect_all(settings: InferenceSettings) -> list[list[Inspection]]:
    return await asyncio.gather(
        *(
            inspect(upstream_target(name, each), in_text_mode=each.is_text_mode)
            for name, each in settings.upstreams.items()
        )
    )


def _describe(name: str, upstream: UpstreamSettings, inspection: Inspection) -> Finding:
    url, found = inspection.url, inspection.found
    setting = f"upstreams.{name}"
    if isinstance(found, EngineFault):
        return _describe_fault(f"{setting}: {url}: {found}", setting, found)
    kind, info = found
    message = f"{setting}: {url} is {f'{kind} {info.version}'.strip()} with the model {info.model}"
    missing = sorted(set(upstream.adapters) - info.adapters.keys())
    if missing and not upstream.adapter_folder:
        remedy = f"load them there, or remove them from `{setting}.adapters`"
        return warning(_CHECK, f"{message}, without the adapters {', '.join(missing)}", remedy)
    return ok(_CHECK, message)


def _describe_fault(message: str, setting: str, fault: EngineFault) -> Finding:
    if isinstance(fault, TlsRefused):
        remedy = f"renew it, or correct `{setting}.urls` and `{setting}.tls` in [inference]"
        return error(_CHECK, message, remedy)
    if isinstance(fault, EngineUnusable | AnswerInvalid):
        return error(_CHECK, message, f"correct `{setting}` in [inference]")
    return warning(_CHECK, message, "start it; until then its model is not served from there")
