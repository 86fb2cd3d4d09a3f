"""What vector stores leave behind: the files of those that expired, files that are gone, passages
that nobody finds any more.
"""

from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from control_svc.db.transaction import Transaction, Transactions
from control_svc.vector_stores.membership import remove_from_all
from control_svc.vector_stores.model import FileState, StoreState
from control_svc.vector_stores.queries import StoreFileQueries, VectorStoreQueries
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from svc_kit.errors import VectorStoreNotFound

_AT_ONCE: Final = 500


async def sweep_vectors(transactions: Transactions, now: datetime) -> None:
    """One round; passages go some in each transaction, because a store may have a million."""
    for project, store_id in await transactions.read(
        lambda tx: VectorStoreQueries(tx).expired(now, _AT_ONCE)
    ):
        await transactions.write(partial(_empty, project, store_id, now))
    for project, file_id in await transactions.read(lambda tx: StoreFileQueries(tx).lost(_AT_ONCE)):
        await transactions.write(partial(_take_out, project, file_id))
    while await transactions.write(_drop_some):
        pass


async def _empty(project: str, store_id: str, now: datetime, tx: Transaction) -> None:
    try:
        store = await VectorStoreQueries(tx).lock(project, store_id)
    except VectorStoreNotFound:  # deleted meanwhile
        return
    if store.state(now) is StoreState.EXPIRED:
        await VectorStoreQueries(tx).empty(project, store)


async def _take_out(project: str, file_id: str, tx: Transaction) -> None:
    await remove_from_all(tx, project, file_id)


async def _drop_some(tx: Transaction) -> bool:
    """Whether there was anything to drop."""
    found = await StoreFileQueries(tx).left_behind()
    if found is None:
        return False
    project, file = found
    if await ChunkQueries(tx).drop(project, file.entry, _AT_ONCE) < _AT_ONCE:
        if file.state is FileState.DELETED:
            await StoreFileQueries(tx).forget(project, file.entry)
        else:
            await StoreFileQueries(tx).update(project, replace(file, num_chunks=0, usage_bytes=0))
    return True
