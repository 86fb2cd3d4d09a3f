"""Composes the slices: one line for each, in the order in which the sweeper runs their steps.

Importing this module imports all tables, so that `METADATA` is complete.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from control_svc.adapters import slice as adapters
from control_svc.assistants import slice as assistants
from control_svc.base.idempotency import delete_old_requests
from control_svc.batches import slice as batches
from control_svc.batches.lines import LineRunner
from control_svc.conversations import slice as conversations
from control_svc.core import Core, Slice
from control_svc.db.tables import Table, blob_columns
from control_svc.event_log.queries import delete_streams_ended_before
from control_svc.files import slice as files
from control_svc.files.content import FileContents
from control_svc.inference import slice as inference
from control_svc.inference.models import RpcModels
from control_svc.inference.prefix_cleanup import PrefixCleanup
from control_svc.inference.slice import ModelParts, model_parts
from control_svc.jobs.queries import delete_ended_jobs
from control_svc.limits import slice as limits
from control_svc.limits.buckets import RateLimits
from control_svc.projects import slice as projects
from control_svc.projects.keys import Keys
from control_svc.projects.prices import Prices
from control_svc.responses import slice as responses
from control_svc.runs import slice as runs
from control_svc.runs.queries import delete_streams_of_thread
from control_svc.vector_stores import slice as vector_stores
from control_svc.vector_stores.membership import remove_file_from_stores


async def build_slices(
    core: Core,
    keys: Keys,
    prices: Prices,
    model: ModelParts | None = None,
    lines: LineRunner | None = None,
    *,
    serves_keyless: bool,
) -> Sequence[Slice]:
    """Build all slices. Raises StartupError.

    `model` replaces the inference service, and `lines` replaces it in batches.
    """
    settings = core.settings
    contents = FileContents(core.transactions, core.blobs, core.clock)
    prefixes = PrefixCleanup(core.ids, is_used=core.token is not None)
    models = RpcModels(core.inference, core.token)

    def client(turn_timeout_s: float) -> ModelParts:
        return model or model_parts(core, contents, turn_timeout_s)

    # Those of which others are given a part.
    stores = vector_stores.build(
        core, partial(RateLimits(core.across_projects).of_caller, settings.embedding_model or "")
    )
    search = stores.search
    answers = await responses.build(
        core, search, client(settings.responses.turn_timeout_s), prefixes
    )
    bounds = limits.build(core, models.find, prices)
    return [
        files.build(core, [remove_file_from_stores]),
        batches.build(core, contents, answers.run_line, lines),
        stores,
        Slice(cleanup=[delete_streams_ended_before(timedelta(seconds=settings.streams.keep_s))]),
        answers,
        Slice(cleanup=[delete_ended_jobs, delete_old_requests]),
        conversations.build(core, prefixes),
        assistants.build(core, prefixes, [delete_streams_of_thread]),
        runs.build(core, search, client(settings.runs.turn_timeout_s)),
        await projects.build(
            core,
            keys,
            prices,
            models.find,
            bounds.to_add,
            [prefixes.enqueue_project],
            serves_keyless=serves_keyless,
        ),
        bounds,
        adapters.build(core, models.check_free),
        inference.build(core),
    ]


METADATA: Final[sa.MetaData] = Table.metadata
"""All tables of the database."""
BLOB_COLUMNS: Final[Sequence[sa.Column[Any]]] = blob_columns()
"""Every column that refers to a blob. A blob that none refers to is deleted."""
