"""CRUD of assistants."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from control_svc.assistants.model import Assistant, AssistantSettings, NewAssistant
from control_svc.assistants.queries import AssistantQueries
from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import ASSISTANT, IdSource
from control_svc.base.pagination import PAGE_BYTES, Page, PageRequest, PageTokens
from control_svc.db.transaction import (
    Clock,
    Transaction,
    Transactions,
    delete_transaction,
    read_transaction,
    write_transaction,
)
from control_svc.tools.file_search_resources import ToolStores, apply_update

CREATE: Final = "CreateAssistant"
MAX_PAGE: Final = 100


@dataclass(frozen=True)
class Assistants:
    """Operations on assistants."""

    transactions: Transactions
    ids: IdSource
    tokens: PageTokens
    clock: Clock
    stores: ToolStores

    async def create(self, project: str, new: NewAssistant) -> Assistant:
        """Create an assistant.

        Raises RequestIdReused, and the errors of `NewAssistant.check` and `ToolStores.create`.
        """
        new.check()
        new_id, now = self.ids.new(ASSISTANT), self.clock()
        request = IdempotencyRecord.of(CREATE, new.request_id, new_id, now, new)

        async def add(tx: Transaction) -> Assistant:
            created = await record_request(tx, request)
            if created != new_id:
                return await AssistantQueries(tx).get(created)
            resources = await self.stores.create(tx, new.settings.resources, new.new_stores)
            settings = replace(new.settings, resources=resources)
            assistant = Assistant(id=new_id, settings=settings, created_at=now)
            await AssistantQueries(tx).add(assistant)
            return assistant

        return await self.transactions.of(project).write(add)

    @read_transaction
    async def get(self, tx: Transaction, assistant_id: str) -> Assistant:
        """Raises AssistantNotFound."""
        return await AssistantQueries(tx).get(assistant_id)

    @read_transaction
    async def page(self, tx: Transaction, page_request: PageRequest) -> Page[Assistant]:
        """A page of the project's assistants. Raises OutOfRange or InvalidField."""
        page_request.check_cursors(ASSISTANT, "an assistant")
        window = self.tokens.window(page_request, (tx.project, "assistants"), MAX_PAGE)
        return window.page(await AssistantQueries(tx).page(window), PAGE_BYTES)

    @write_transaction
    async def update(
        self,
        tx: Transaction,
        assistant_id: str,
        edit: Callable[[AssistantSettings], AssistantSettings],
        etag: str,
    ) -> Assistant:
        """Apply `edit` to the settings of an assistant.

        Raises AssistantNotFound, and the errors of `apply_update`.
        """
        current = await AssistantQueries(tx).lock(assistant_id)
        changed = current.with_settings(await apply_update(tx, current, edit, etag))
        await AssistantQueries(tx).update(changed)
        return changed

    @delete_transaction
    async def delete(self, tx: Transaction, assistant_id: str) -> None:
        """Delete an assistant; threads and runs keep its id. Raises AssistantNotFound."""
        await AssistantQueries(tx).lock(assistant_id)
        await AssistantQueries(tx).delete(assistant_id)
