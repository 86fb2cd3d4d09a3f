"""Builds limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from corral.control.v1.limit_service_pb2 import Limit

from control_svc.core import Core, Slice
from control_svc.limits.queries import delete_unused_shares
from control_svc.limits.service import CheckModel, Limits
from control_svc.limits.servicer import LimitServicer, limits_to_add
from control_svc.projects.keys import AddLimits
from control_svc.projects.prices import Prices


@dataclass(frozen=True, kw_only=True)
class LimitSlice(Slice):
    """Limits, and what creates those of new keys."""

    to_add: Callable[[Sequence[Limit], bool], AddLimits]
    """As `limits_to_add`, with the limits of this service."""


def build(core: Core, check_model: CheckModel, prices: Prices) -> LimitSlice:
    """Build the slice; `check_model` raises unless a project may use a model."""
    limits = Limits(core.across_projects, core.tokens, core.clock, check_model)
    return LimitSlice(
        servicers=[LimitServicer(limits, prices)],
        cleanup=[delete_unused_shares],
        to_add=partial(limits_to_add, limits),
    )
