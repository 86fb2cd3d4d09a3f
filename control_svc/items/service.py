"""Appends the items of a request to a timeline: new ones are inserted, referenced ones linked.
Outputs are paired with their calls.
"""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby

from control_svc.base.ids import IdSource, creation_key, is_id
from control_svc.db.transaction import Transaction
from control_svc.event_log.queries import StreamQueries
from control_svc.files.queries import FileQueries
from control_svc.items.input_items import InputItem, referenced_files
from control_svc.items.model import (
    CALL_KINDS,
    CallPart,
    Content,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemStatus,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    rename_approval_requests,
)
from control_svc.items.queries import TimelineQueries
from svc_kit.errors import InvalidField, ItemNotFound, ToolCallMissing


def call_parts(items: Sequence[Item]) -> list[CallPart]:
    """What pairs the calls, outputs and approvals among items."""
    return [
        CallPart(item.id, item.kind, item.status, call_id)
        for item in items
        if (call_id := _call_id(item.content)) is not None
    ]


def _call_id(content: Content) -> str | None:
    """See `CallPart`. None for other items."""
    match content:
        case FunctionCall() | FunctionCallOutput() | CustomToolCall() | CustomToolCallOutput():
            return content.call_id
        case McpCall() | McpApprovalResponse():
            return content.approval_request_id
        case McpApprovalRequest():
            return ""
    return None


def open_calls(history: Sequence[CallPart], new: Sequence[CallPart], field: str) -> list[str]:
    """Return the ids of the completed calls without an output. `field` has the new items.

    Raises ToolCallMissing for a new output without a call, or InvalidField for an id that two open
    calls have.
    """
    found: dict[str, ItemStatus] = {}
    for index, (_, kind, status, call_id) in enumerate([*history, *new], -len(history)):
        if kind not in CALL_KINDS:
            continue
        if not kind.endswith("_output"):
            if index >= 0 and found.get(call_id) is ItemStatus.COMPLETED:
                problem = f"two function calls without an output have the call_id '{call_id}'"
                raise InvalidField(field=field, problem=problem)
            found[call_id] = status
            continue
        if index >= 0 and call_id not in found:
            kind = "function" if kind == "function_call_output" else "custom tool"
            raise ToolCallMissing(call=call_id, kind=kind, field=field)
        found.pop(call_id, None)
    return [call_id for call_id, status in found.items() if status is ItemStatus.COMPLETED]


async def resolve_items(
    tx: Transaction,
    inputs: Sequence[InputItem],
    ids: IdSource,
    now: datetime,
    field: str,
    before: Sequence[CallPart] = (),
) -> list[Item]:
    """Load the referenced items and assign ids to the new ones; return them in order.

    `field` is the field of the request. `before` are the earlier items that approvals and calls in
    `inputs` may refer to. Raises ItemNotFound or FileNotFound.
    """
    references = [item.reference for item in inputs if item.content is None]
    stored = await TimelineQueries(tx).get_many(references)
    await FileQueries(tx).find(referenced_files(inputs, field), now)
    new_ids = await _assign_ids(tx, inputs, ids)
    items: list[Item] = []
    for index, (item, new_id) in enumerate(zip(inputs, new_ids, strict=True)):
        if item.content is not None:
            items.append(Item(id=new_id, status=item.status, created_at=now, content=item.content))
        elif item.reference in stored:
            items.append(stored[item.reference])
        else:
            raise ItemNotFound(item=item.reference, field=f"{field}[{index}].id")
    known = {"", *(part.item_id for part in before), *(item.id for item in items)}
    changed_ids = {
        old.id: new.id
        for old, new in zip(inputs, items, strict=True)
        if isinstance(new.content, McpApprovalRequest) and old.id not in known
    }
    return rename_approval_requests(items, changed_ids)


async def append_items(
    tx: Transaction, timeline: str, inputs: Sequence[InputItem], items: Sequence[Item], field: str
) -> None:
    """Append the result of `resolve_items` to a timeline whose owner is locked.

    Raises InvalidField for an item that the timeline already contains.
    """
    await check_duplicates(tx, timeline, inputs, field)
    pairs = zip(inputs, items, strict=True)
    for is_new, group in groupby(pairs, key=lambda pair: pair[0].content is not None):
        add = TimelineQueries(tx).append if is_new else TimelineQueries(tx).link
        await add(timeline, [item for _, item in group])


async def check_duplicates(
    tx: Transaction, timeline: str, inputs: Sequence[InputItem], field: str
) -> None:
    """Raises InvalidField for a reference that is repeated or whose item is in the timeline."""
    references = {i: item.reference for i, item in enumerate(inputs) if item.content is None}
    known = await TimelineQueries(tx).contained(timeline, references.values())
    for index, reference in references.items():
        if reference in known:
            problem = "the item is repeated, or already in the conversation"
            raise InvalidField(field=f"{field}[{index}].id", problem=problem)
        known.add(reference)


async def _assign_ids(tx: Transaction, inputs: Sequence[InputItem], ids: IdSource) -> list[str]:
    """The ids of the items, in order.

    A new item gets the caller's id if that has the right form and no other item has it, or will
    have it.
    """
    proposed = [item.id for item in inputs if item.prefix and is_id(item.id, item.prefix)]
    free = await _free_ids(tx, proposed)
    assigned = []
    for item in inputs:
        is_free = bool(item.prefix) and item.id in free
        item_id = item.reference or (item.id if is_free else ids.new(item.prefix))
        free.discard(item_id)
        assigned.append(item_id)
    return assigned


async def _free_ids(tx: Transaction, proposed: Sequence[str]) -> set[str]:
    """The ids that no item has. Ids as young as an open turn are excluded: it may use them."""
    if not proposed:
        return set()
    oldest = await StreamQueries(tx).oldest_open()
    existing = await TimelineQueries(tx).existing_ids(proposed)
    return {each for each in proposed if not oldest or creation_key(each) < oldest} - existing
