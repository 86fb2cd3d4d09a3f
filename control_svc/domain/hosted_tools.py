"""Tools that the server carries out for the model: what the loop behind runs and responses asks.

A hosted tool turns the model's call into an item, the *intent*, which is committed before anything
is done, and later into the item with the result. What happens to a call whose result nobody knows,
because a process ended in between, is the tool's to say.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from control_svc.domain.items import Content, Item
from control_svc.domain.turns import TurnTool


class HostedCall(NamedTuple):
    """A call as the model made it."""

    call_id: str
    name: str
    arguments: str
    """JSON text; nobody has checked it."""


class HostedTool(Protocol):
    """One or several functions that the server carries out."""

    @property
    def functions(self) -> Sequence[TurnTool]:
        """What the model is told; their names are those of no other tool of the request."""

    @property
    def kind(self) -> str:
        """The tool's kind, by which a choice may name it: "file_search", "mcp"."""

    @property
    def item_prefix(self) -> str:
        """How the ids of the calls' items begin."""

    @property
    def is_repeatable(self) -> bool:
        """Whether a call whose result is not known may be made again."""

    def intent(self, call: HostedCall) -> Content:
        """The item of a call before it is carried out.

        Arguments that make no sense are no error: the item says so, and `run` ends it. A request
        for a person's approval is an intent that is never run: the loop ends with it.
        """

    def runs(self, content: Content) -> bool:
        """Whether an item is this tool's intent, to be carried out."""

    async def run(self, project: str, intent: Item) -> Content:
        """The item with the result. A call that fails is a result, which the model reads.

        Raises what another try may end better: Unavailable, ResourceExhausted, Aborted.
        """

    def abandoned(self, intent: Item) -> Content:
        """The item of a call that may have been made, and is not made again."""
