"""A person's words about remote calls: each counts once, also where two responses go on from one,
as they do where a client asks again because it has lost the answer."""

from collections.abc import Sequence

from control_svc.domain.items import Item, McpApprovalResponse
from control_svc.domain.mcp import check_words
from control_svc.domain.responses import Response
from control_svc.storage.repositories.responses import SqlResponses
from control_svc.storage.unit_of_work import Transaction


async def check_words_once(
    tx: Transaction,
    project: str,
    response: Response,
    before: Sequence[Item],
    given: Sequence[Item],
    *,
    locks: bool,
) -> None:
    """That the words of a new response are about calls that wait for them, and for nobody else's.

    `locks`: whoever else goes on with such words waits until the transaction has ended. Raises
    InvalidField.
    """
    spent: Sequence[Item] = ()
    if response.previous_id and any(map(_allows, given)):
        if locks:
            await SqlResponses(tx).lock(project, response.previous_id)
        spent = await SqlResponses(tx).words_after(project, response.previous_id)
    check_words([*before, *spent], given)


def _allows(item: Item) -> bool:
    return isinstance(item.content, McpApprovalResponse) and item.content.approve
