"""Builds projects, keys and usage."""

from collections.abc import Awaitable, Callable, Sequence

from corral.control.v1.limit_service_pb2 import Limit

from control_svc.core import Core, Slice, require_for_start
from control_svc.db.transaction import DeleteHook
from control_svc.projects.key_servicer import KeyServicer
from control_svc.projects.keys import AddLimits, Keys
from control_svc.projects.prices import Prices
from control_svc.projects.projects import Projects
from control_svc.projects.usage import Usage, delete_old_reports


async def build(
    core: Core,
    keys: Keys,
    prices: Prices,
    check_model: Callable[[str, str], Awaitable[object]],
    limits_to_add: Callable[[Sequence[Limit], bool], AddLimits],
    on_archive: Sequence[DeleteHook],
    *,
    serves_keyless: bool,
) -> Slice:
    """Build the slice; the arguments are those of `KeyServicer` and `Projects`. Raises
    StartupError."""
    projects = Projects(core.across_projects, core.tokens, core.clock, on_archive)
    await require_for_start(projects.prepare())
    return Slice(
        servicers=[
            projects,
            KeyServicer(
                core.across_projects, core.tokens, keys, check_model, limits_to_add, serves_keyless
            ),
            Usage(core.across_projects, core.tokens, core.clock, prices),
        ],
        cleanup=[delete_old_reports],
    )
