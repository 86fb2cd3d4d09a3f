"""CRUD of assistants."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from control_svc.assistants.model import Assistant, AssistantSettings, NewAssistant
from control_svc.assistants.queries import AssistantQueries
from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import ASSISTANT, IdSource
from control_svc.base.pagination import PAGE_BYTES, Page, PageRequest, PageTokens
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.tools.file_search_resources import ToolStores, apply_update

CREATE: Final = "CreateAssistant"
MAX_PAGE: Final = 100


class Assistants:
    """Operations on assistants."""

    def __init__(
        self,
        transactions: Transactions,
        ids: IdSource,
        tokens: PageTokens,
        clock: Clock,
        embedding_model: str | None,
    ) -> None:
        """`embedding_model` is None if the installation has none; files cannot be searched then."""
        self._transactions = transactions
        self._ids = ids
        self._tokens = tokens
        self._clock = clock
        self._stores = ToolStores(ids, clock, embedding_model)

    async def create(self, project: str, new: NewAssistant) -> Assistant:
        """Create an assistant.

        Raises RequestIdReused, and the errors of `NewAssistant.check` and `ToolStores.create`.
        """
        new.check()
        new_id, now = self._ids.new(ASSISTANT), self._clock()
        request = IdempotencyRecord.of(CREATE, new.request_id, new_id, now, new)

        async def add(tx: Transaction) -> Assistant:
            created = await record_request(tx, project, request)
            if created != new_id:
                return await AssistantQueries(tx).get(project, created)
            resources = await self._stores.create(
                tx, project, new.settings.resources, new.new_stores
            )
            settings = replace(new.settings, resources=resources)
            assistant = Assistant(id=new_id, settings=settings, created_at=now)
            await AssistantQueries(tx).add(project, assistant)
            return assistant

        return await self._transactions.write(add)

    async def get(self, project: str, assistant_id: str) -> Assistant:
        """Raises AssistantNotFound."""
        return await self._transactions.read(
            lambda tx: AssistantQueries(tx).get(project, assistant_id)
        )

    async def page(self, project: str, page_request: PageRequest) -> Page[Assistant]:
        """A page of the project's assistants. Raises OutOfRange or InvalidField."""
        page_request.check_cursors(ASSISTANT, "an assistant")
        binding = (project, "assistants")
        window = self._tokens.window(page_request, binding, MAX_PAGE)
        assistants = await self._transactions.read(
            lambda tx: AssistantQueries(tx).page(project, window)
        )
        return self._tokens.page(assistants, window, page_request, binding, PAGE_BYTES)

    async def update(
        self,
        project: str,
        assistant_id: str,
        edit: Callable[[AssistantSettings], AssistantSettings],
        etag: str,
    ) -> Assistant:
        """Apply `edit` to the settings of an assistant.

        Raises AssistantNotFound, and the errors of `apply_update`.
        """

        async def change(tx: Transaction) -> Assistant:
            current = await AssistantQueries(tx).lock(project, assistant_id)
            changed = current.with_settings(await apply_update(tx, project, current, edit, etag))
            await AssistantQueries(tx).update(project, changed)
            return changed

        return await self._transactions.write(change)

    async def delete(self, project: str, assistant_id: str) -> None:
        """Delete an assistant; threads and runs keep its id. Raises AssistantNotFound."""
        await self._transactions.write(
            lambda tx: AssistantQueries(tx).delete(project, assistant_id)
        )
