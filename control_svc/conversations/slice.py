"""Builds conversations."""

from control_svc.conversations.service import Conversations
from control_svc.core import Core, Slice
from control_svc.inference.prefix_cleanup import PrefixCleanup


def build(core: Core, prefixes: PrefixCleanup) -> Slice:
    return Slice(servicers=[Conversations(*core.shared, prefixes)])
