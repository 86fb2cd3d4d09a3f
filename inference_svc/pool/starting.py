"""Sizes of the models that load at the start, planned together: those that go to the same places
share what is free there."""

from collections import defaultdict
from collections.abc import Sequence

from inference_svc.catalog import KnownModel
from inference_svc.models.room import PlacedBytes
from inference_svc.models.sizing import ResolvedLimits, memory_needs, plan_limits, planned_bytes
from inference_svc.pool.moving import Memory


def plan_start(models: Sequence[KnownModel], memory: Memory) -> list[ResolvedLimits]:
    """Sizes for each of the models; a group of them leaves the least that later groups need.

    Raises `ModelTooLarge`.
    """
    free, budget_bytes = memory.available(), memory.budget_bytes
    waiting = list(_groups(models, free))
    sizes: dict[str, ResolvedLimits] = {}
    while waiting:
        group = waiting.pop(0)
        kept = [_least(each, free) for others in waiting for each in others]
        kept_bytes = sum(kept, PlacedBytes())
        left = free.without(kept_bytes)
        fitting = (each.resident.spread.fitting_bytes(left, free) for each in group)
        most = max(min(budget_bytes - kept_bytes.total, *fitting), 0)
        files, requests = [each.file for each in group], [each.requested for each in group]
        for known, limits in zip(group, plan_limits(files, most, requests), strict=True):
            sizes[known.name] = limits
            planned = planned_bytes(known.file, limits)
            free = free.without(known.resident.spread.divide(planned, free))
            budget_bytes -= planned
    return [sizes[known.name] for known in models]


def _groups(models: Sequence[KnownModel], free: PlacedBytes) -> Sequence[list[KnownModel]]:
    groups = defaultdict(list)
    for known in models:
        groups[known.resident.spread.places(free)].append(known)
    return list(groups.values())


def _least(known: KnownModel, free: PlacedBytes) -> PlacedBytes:
    needed = memory_needs(known.file, known.requested).least
    return known.resident.spread.divide(needed, free)
