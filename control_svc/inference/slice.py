"""Builds the clients of the inference service, and the deletion of stored prefixes."""

from typing import NamedTuple

from control_svc.core import Core, Slice
from control_svc.inference.media import FileSource
from control_svc.inference.models import Models, RpcModels
from control_svc.inference.prefix_cleanup import KIND, PrefixCleanupWorker, RpcDiskPrefixCache
from control_svc.inference.turn_client import RpcTurnClient, TokenCounter
from control_svc.inference.turns import TurnClient
from control_svc.jobs.handler import retry_from_start


class ModelParts(NamedTuple):
    """Clients of the inference service: turns, models, and the counter of prompt tokens."""

    turns: TurnClient
    models: Models
    counter: TokenCounter


def model_parts(core: Core, files: FileSource, turn_timeout_s: float) -> ModelParts:
    """Build the clients of the inference service; `files` are those of prompts."""
    client = RpcTurnClient(core.inference, core.token, files, timeout_s=turn_timeout_s)
    return ModelParts(client, RpcModels(core.inference, core.token), client)


def build(core: Core) -> Slice:
    """Build the slice. Without a service token no prefixes are stored, so none are deleted."""
    prefixes = core.token and RpcDiskPrefixCache(core.inference, core.token)
    return Slice(
        handlers=[PrefixCleanupWorker(prefixes)] if prefixes else [],
        retries={KIND: retry_from_start},
    )
