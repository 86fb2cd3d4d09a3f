"""Builds limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corral.control.v1.limit_service_pb2 import Limit

from control_svc.core import Core, Slice
from control_svc.limits.queries import delete_unused_shares
from control_svc.limits.service import CheckModel, Limits
from control_svc.projects.keys import AddLimits
from control_svc.projects.prices import Prices


@dataclass(frozen=True, kw_only=True)
class LimitSlice(Slice):
    """Limits, and `Limits.to_add` of this service."""

    to_add: Callable[[Sequence[Limit], bool], AddLimits]


def build(core: Core, check_model: CheckModel, prices: Prices) -> LimitSlice:
    limits = Limits(core.across_projects, core.tokens, core.clock, check_model, prices)
    return LimitSlice(servicers=[limits], cleanup=[delete_unused_shares], to_add=limits.to_add)
