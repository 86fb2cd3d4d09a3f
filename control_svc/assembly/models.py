"""The inference service as runs and responses see it, in one piece that a test can replace."""

from typing import NamedTuple

from control_svc.assembly.ground import Ground
from control_svc.clients.model_client import RpcModels
from control_svc.clients.token_counter import RpcTokenCounter
from control_svc.clients.turn_client import RpcTurnClient
from control_svc.domain.response_ports import Models
from control_svc.domain.run_ports import TokenCounter
from control_svc.domain.turns import TurnClient


class ModelParts(NamedTuple):
    """What calls models, knows them, and counts what they would be shown."""

    turns: TurnClient
    models: Models
    counter: TokenCounter


def model_parts(ground: Ground, turn_timeout_s: float) -> ModelParts:
    """Those of the inference service; a turn takes at most so long."""
    return ModelParts(
        RpcTurnClient(ground.inference, ground.token, timeout_s=turn_timeout_s),
        RpcModels(ground.inference, ground.token),
        RpcTokenCounter(ground.inference, ground.token, timeout_s=turn_timeout_s),
    )
