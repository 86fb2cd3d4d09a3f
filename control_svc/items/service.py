"""Appends the items of a request to a timeline: new ones are inserted, referenced ones linked."""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby

from control_svc.base.ids import IdSource, creation_key, is_id
from control_svc.db.transaction import Transaction
from control_svc.event_log.queries import StreamQueries
from control_svc.files.queries import FileQueries
from control_svc.items.input_items import InputItem, referenced_files
from control_svc.items.model import Item, McpApprovalRequest, rename_ids
from control_svc.items.queries import TimelineQueries
from svc_kit.errors import FileNotFound, InvalidField, ItemNotFound


async def resolve_items(
    tx: Transaction,
    project: str,
    given: Sequence[InputItem],
    ids: IdSource,
    now: datetime,
    field: str,
    before: Sequence[Item] = (),
) -> list[Item]:
    """The items that are meant, in order: new ones with ids, stored ones as they are.

    `field` is what the request calls them, `before` what they may be about beside one another.
    Raises ItemNotFound or FileNotFound.
    """
    references = [item.reference for item in given if item.content is None]
    stored = await TimelineQueries(tx).get_many(project, references)
    await _check_files(tx, project, given, now, field)
    names = await _names(tx, project, given, ids)
    items = []
    for index, (item, name) in enumerate(zip(given, names, strict=True)):
        if item.content is None and item.reference not in stored:
            raise ItemNotFound(item=item.reference, field=f"{field}[{index}].id")
        items.append(stored[item.reference] if item.content is None else _new(item, name, now))
    return rename_ids(items, _other_names(given, [*before, *items]))


async def append_items(
    tx: Transaction,
    project: str,
    timeline: str,
    given: Sequence[InputItem],
    items: Sequence[Item],
    field: str,
) -> None:
    """Put what `resolve_items` gave at the end of a timeline whose owner is locked.

    Raises InvalidField for an item that the timeline has already.
    """
    await check_duplicates(tx, project, timeline, given, field)
    pairs = zip(given, items, strict=True)
    for is_new, group in groupby(pairs, key=lambda pair: pair[0].content is not None):
        some = [item for _, item in group]
        put = TimelineQueries(tx).append if is_new else TimelineQueries(tx).link
        await put(project, timeline, some)


async def check_duplicates(
    tx: Transaction,
    project: str,
    timeline: str,
    given: Sequence[InputItem],
    field: str,
) -> None:
    """That no item is named that a timeline has already, or twice. Raises InvalidField."""
    seen = set()
    for index, item in enumerate(given):
        if item.content is not None:
            continue
        there = await TimelineQueries(tx).get(project, timeline, item.reference)
        if there is not None or item.reference in seen:
            raise InvalidField(field=f"{field}[{index}].id", problem="the item is there already")
        seen.add(item.reference)


async def _check_files(
    tx: Transaction,
    project: str,
    given: Sequence[InputItem],
    now: datetime,
    field: str,
) -> None:
    for index, file_id in referenced_files(given):
        try:
            await FileQueries(tx).get(project, file_id, now)
        except FileNotFound:
            raise FileNotFound(file=file_id, field=f"{field}[{index}].content") from None


async def _names(
    tx: Transaction, project: str, given: Sequence[InputItem], ids: IdSource
) -> list[str]:
    """The ids of items; of new ones those that their callers have kept for them, where these are
    ids of ours that no other item has, or will have."""
    kept = [item.id for item in given if item.prefix and is_id(item.id, item.prefix)]
    free = await _free(tx, project, kept)
    names = []
    for item in given:
        is_kept = bool(item.prefix) and item.id in free
        name = item.reference or (item.id if is_kept else ids.new(item.prefix))
        free.discard(name)
        names.append(name)
    return names


async def _free(tx: Transaction, project: str, kept: Sequence[str]) -> set[str]:
    """The ids that no item has. Ids of a turn that is being written count as taken."""
    if not kept:
        return set()
    oldest = await StreamQueries(tx).oldest_open(project)
    taken = await TimelineQueries(tx).existing_ids(project, kept)
    return {each for each in kept if not oldest or creation_key(each) < oldest} - taken


def _other_names(given: Sequence[InputItem], items: Sequence[Item]) -> dict[str, str]:
    """The questions that are called otherwise than their caller calls them; `items` end with those
    given."""
    known = {item.id for item in items}
    pairs = zip(given, items[len(items) - len(given) :], strict=True)
    return {
        old.id: new.id
        for old, new in pairs
        if isinstance(new.content, McpApprovalRequest) and old.id not in known
    }


def _new(given: InputItem, name: str, now: datetime) -> Item:
    if given.content is None:
        raise ValueError("a name of a stored item is no content")
    return Item(id=name, status=given.status, created_at=now, content=given.content)
