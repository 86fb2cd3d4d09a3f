"""What vector stores leave behind: the files of those that expired, files that are gone, passages
that nobody finds any more."""

from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from control_svc.domain.ports import Repositories, Transactions
from control_svc.domain.vector_stores import FileState, StoreState
from control_svc.usecases.vector_adding import take_out_everywhere
from svc_kit.errors import VectorStoreNotFound

_AT_ONCE: Final = 500


async def sweep_vectors(transactions: Transactions, now: datetime) -> None:
    """One round; passages go some in each transaction, because a store may have a million."""
    for project, store_id in await transactions.read(
        lambda repositories: repositories.vector_stores.expired(now, _AT_ONCE)
    ):
        await transactions.write(partial(_empty, project, store_id, now))
    for project, file_id in await transactions.read(
        lambda repositories: repositories.store_files.lost(_AT_ONCE)
    ):
        await transactions.write(partial(_take_out, project, file_id))
    while await transactions.write(_drop_some):
        pass


async def _empty(project: str, store_id: str, now: datetime, repositories: Repositories) -> None:
    try:
        store = await repositories.vector_stores.lock(project, store_id)
    except VectorStoreNotFound:  # deleted meanwhile
        return
    if store.state(now) is StoreState.EXPIRED:
        await repositories.vector_stores.empty(project, store)


async def _take_out(project: str, file_id: str, repositories: Repositories) -> None:
    await take_out_everywhere(repositories, project, file_id)


async def _drop_some(repositories: Repositories) -> bool:
    """Whether there was anything to drop."""
    found = await repositories.store_files.left_behind()
    if found is None:
        return False
    project, file = found
    if await repositories.chunks.drop(project, file.entry, _AT_ONCE) < _AT_ONCE:
        if file.state is FileState.DELETED:
            await repositories.store_files.forget(project, file.entry)
        else:
            await repositories.store_files.update(
                project, replace(file, num_chunks=0, usage_bytes=0)
            )
    return True
