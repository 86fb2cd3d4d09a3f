"""Builds assistants, threads and messages."""

from collections.abc import Sequence

from control_svc.assistants.assistants import Assistants
from control_svc.assistants.messages import MessageAdder, Messages
from control_svc.assistants.threads import Threads
from control_svc.core import Core, Slice
from control_svc.db.transaction import DeleteHook
from control_svc.inference.prefix_cleanup import PrefixCleanup
from control_svc.tools.file_search_resources import ToolStores


def build(core: Core, prefixes: PrefixCleanup, on_delete: Sequence[DeleteHook]) -> Slice:
    """Build the slice; `on_delete` deletes what refers to a deleted thread."""
    stores = ToolStores(core.ids, core.clock, core.settings.embedding_model)
    adder = MessageAdder(core.ids, core.clock, core.settings.embedding_model)
    return Slice(
        servicers=[
            Assistants(*core.shared, stores),
            Threads(*core.shared, adder, prefixes, on_delete),
            Messages(*core.shared, adder),
        ]
    )
