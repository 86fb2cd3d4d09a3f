"""Builds conversations."""

from control_svc.conversations.service import Conversations
from control_svc.conversations.servicer import ConversationServicer
from control_svc.core import Core, Slice
from control_svc.inference.prefix_cleanup import PrefixCleanup


def build(core: Core, prefixes: PrefixCleanup) -> Slice:
    """Build the slice."""
    conversations = Conversations(core.transactions, core.ids, core.tokens, core.clock, prefixes)
    return Slice(servicers=[ConversationServicer(conversations)])
