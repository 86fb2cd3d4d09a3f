"""CRUD of assistants."""

from dataclasses import dataclass, replace
from datetime import datetime

from corral.control.v1 import assistant_service_pb2 as pb

from control_svc.assistants.model import Assistant, NewAssistant
from control_svc.assistants.proto import ASSISTANT, NEW_ASSISTANT, assistant_edit
from control_svc.assistants.queries import AssistantQueries
from control_svc.base.pagination import PAGE_BYTES
from control_svc.base.resource import Edit, Resource
from control_svc.db.transaction import Transaction
from control_svc.tools.file_search_resources import ToolStores, settings_edit


@dataclass(frozen=True)
class Assistants(Resource[Assistant, NewAssistant]):
    """Assistants. Threads and runs keep the id of a deleted one."""

    service = pb.DESCRIPTOR.services_by_name["AssistantService"]
    message, new, queries = ASSISTANT, NEW_ASSISTANT, AssistantQueries
    noun, plural, max_bytes = "an assistant", "assistants", PAGE_BYTES

    stores: ToolStores

    async def insert(
        self, tx: Transaction, new: NewAssistant, object_id: str, now: datetime
    ) -> Assistant:
        """Raises the errors of `ToolStores.create`."""
        resources = await self.stores.create(tx, new.settings.resources, new.new_stores)
        settings = replace(new.settings, resources=resources)
        assistant = Assistant(id=object_id, settings=settings, created_at=now)
        await AssistantQueries(tx).add(assistant)
        return assistant

    def edit(self, request: pb.UpdateAssistantRequest) -> Edit[Assistant]:
        """Raises InvalidField, and the errors of `settings_edit`."""
        changes = request.assistant
        return settings_edit(assistant_edit(changes, request.update_mask), changes.etag)
