"""Table and SQL of responses."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    Index,
    LargeBinary,
    Row,
    String,
    Text,
    and_,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Mapped, aliased, mapped_column
from sqlalchemy.sql import ColumnElement, FromClause

from control_svc.base.ids import RESPONSE, is_id
from control_svc.db.tables import Instant, Key, Project, Table
from control_svc.db.transaction import Transaction
from control_svc.event_log.queries import StreamQueries
from control_svc.items.model import Item, TimelineItem
from control_svc.items.queries import ItemRow, TimelineItemRow, TimelineQueries, item_from_row
from control_svc.responses.model import (
    Ended,
    Expired,
    Link,
    Response,
    ResponseSettings,
    ResponseState,
    Work,
)
from svc_kit.errors import ResponseNotFound


class ResponseRow(Table):
    """A response; its own items are in the timeline of the same id, its events in the stream."""

    __tablename__ = "responses"
    __table_args__ = (Index(None, "project", "previous_id"), Index(None, "expires_at"))

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # as asked
    settings: Mapped[bytes] = mapped_column(LargeBinary)
    options: Mapped[bytes] = mapped_column(LargeBinary)
    # as in effect
    model: Mapped[str] = mapped_column(Text)
    effective_options: Mapped[bytes] = mapped_column(LargeBinary)
    seed: Mapped[int] = mapped_column(BigInteger)
    # what was said before; no foreign keys, because it may be deleted and the response stays
    previous_id: Mapped[str] = mapped_column(Key)
    conversation_id: Mapped[str] = mapped_column(Key)
    conversation_end: Mapped[int] = mapped_column(BigInteger)
    context_start: Mapped[str] = mapped_column(Key)
    is_compacted: Mapped[bool] = mapped_column(Boolean)
    # what it has become
    state: Mapped[str] = mapped_column(String(16))
    work: Mapped[bytes] = mapped_column(LargeBinary)
    ending: Mapped[bytes] = mapped_column(LargeBinary)
    # its life
    created_at: Mapped[datetime] = mapped_column(Instant)
    completed_at: Mapped[datetime | None] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant)


_SETTINGS: Final = TypeAdapter(ResponseSettings)
_WORK: Final = TypeAdapter(Work)
_ENDING: Final = TypeAdapter(Ended)
_AS_THEY_ARE: Final = (
    "id",
    "model",
    "seed",
    "previous_id",
    "conversation_id",
    "conversation_end",
    "context_start",
    "is_compacted",
    "created_at",
    "completed_at",
    "expires_at",
)
_FINAL: Final = [state.value for state in ResponseState if state.is_final]
_ZERO: Final[ColumnElement[int]] = literal(0)
_IS_START: Final = and_(
    ResponseRow.conversation_id == "",
    or_(ResponseRow.previous_id == "", ResponseRow.is_compacted),
)


class ResponseQueries:
    """The rows of responses; their own items are in timelines of the same ids."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session
        self._timelines = TimelineQueries(tx)
        self._streams = StreamQueries(tx)

    async def add(self, project: str, response: Response) -> None:
        """Keep a new response."""
        await self._session.execute(
            insert(ResponseRow).values(project=project, **_values(response))
        )

    async def get(self, project: str, response_id: str) -> Response:
        """The response without its output. Raises ResponseNotFound."""
        return await self._get(project, response_id, locked=False)

    async def lock(self, project: str, response_id: str) -> Response:
        """As `get`, locked until the end of the transaction."""
        return await self._get(project, response_id, locked=True)

    async def update(self, project: str, response: Response) -> None:
        """Keep what has changed of a locked response; its output is not in the row."""
        await self._session.execute(
            update(ResponseRow).where(*_of(project, response.id)).values(_values(response))
        )

    async def delete(self, project: str, response_id: str) -> None:
        """Forget a response, its items where nothing else has them, and its stream."""
        await self._timelines.delete(project, response_id)
        await self._streams.drop(project, response_id)
        await self._session.execute(delete(ResponseRow).where(*_of(project, response_id)))

    async def chain(self, project: str, response_id: str) -> list[Link]:
        """The responses up to one, oldest first, with all items, in one query.

        It begins where there is nothing before, where the one before is gone, or with a response
        whose own items hold everything before. Empty: there is no such response.
        """
        if not is_id(response_id, RESPONSE):
            return []  # not asked for: a database may refuse its characters
        found = await self._session.execute(_chain_query(project, response_id))
        links = [list(rows) for _, rows in groupby(found, key=lambda row: row.depth)]
        return [_link(rows[0], rows) for rows in links]

    async def start(self, project: str, response_id: str) -> Link | None:
        """The first link of `chain`, without its items."""
        if not is_id(response_id, RESPONSE):
            return None
        chain = _chain(project, response_id)
        found = await self._session.execute(select(chain).order_by(chain.c.depth.desc()).limit(1))
        row = found.first()
        return None if row is None else _link(row, [])

    async def num_chain_bytes(self, project: str, response_id: str) -> int:
        """How long the documents of what `chain` would read are; nothing is read for it."""
        if not is_id(response_id, RESPONSE):
            return 0
        chain = _chain(project, response_id)
        query = _with_items(select(func.sum(func.length(ItemRow.document))), project, chain)
        return (await self._session.execute(query)).scalar_one() or 0

    async def words_after(self, project: str, response_id: str) -> list[Item]:
        """Approvals and remote calls in the responses that continue this one."""
        later = select(ResponseRow.id, ResponseRow.state)
        later = later.where(ResponseRow.project == project, ResponseRow.previous_id == response_id)
        going_on = later.subquery()
        found = await self._session.scalars(
            _with_items(select(ItemRow), project, going_on).where(
                or_(
                    TimelineItemRow.kind == "mcp_call",
                    and_(
                        TimelineItemRow.kind == "mcp_approval_response",
                        going_on.c.state.not_in(_FINAL),
                    ),
                )
            )
        )
        return list(map(item_from_row, found))

    async def drop_expired(self, now: datetime, limit: int) -> list[Expired]:
        """Delete expired responses of all projects that no other response continues."""
        later = aliased(ResponseRow)
        goes_on = exists().where(
            later.project == ResponseRow.project, later.previous_id == ResponseRow.id
        )
        found = await self._session.execute(
            select(ResponseRow.project, ResponseRow.id, _IS_START)
            .where(ResponseRow.expires_at <= now, ResponseRow.state.in_(_FINAL), ~goes_on)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        expired = [Expired(*row) for row in found]
        for each in expired:
            await self.delete(each.project, each.id)
        return expired

    async def _get(self, project: str, response_id: str, *, locked: bool) -> Response:
        row = None
        if is_id(response_id, RESPONSE):  # a database may refuse other characters
            query = select(ResponseRow).where(*_of(project, response_id))
            row = await self._session.scalar(query.with_for_update() if locked else query)
        if row is None:
            raise ResponseNotFound(response=response_id)
        return _response(row)


def _of(project: str, response_id: str) -> tuple[ColumnElement[bool], ...]:
    return (ResponseRow.project == project, ResponseRow.id == response_id)


def _chain(project: str, response_id: str) -> CTE:
    """From the last response, at depth 0, to the first."""
    columns = (
        ResponseRow.id,
        ResponseRow.previous_id,
        ResponseRow.conversation_id,
        ResponseRow.conversation_end,
        ResponseRow.is_compacted,
    )
    last = select(*columns, _ZERO.label("depth")).where(*_of(project, response_id))
    chain = last.cte("chain", recursive=True)
    return chain.union_all(
        select(*columns, chain.c.depth + 1)
        .join(chain, ResponseRow.id == chain.c.previous_id)
        .where(ResponseRow.project == project, ~chain.c.is_compacted.cast(Boolean))
    )


def _chain_query(project: str, response_id: str) -> Any:
    """The chain, oldest first; each with its items, or with none once."""
    chain = _chain(project, response_id)
    query = _with_items(select(chain, TimelineItemRow.position, ItemRow), project, chain)
    return query.order_by(chain.c.depth.desc(), TimelineItemRow.position)


def _with_items(query: Any, project: str, chain: FromClause) -> Any:
    placed = and_(TimelineItemRow.project == project, TimelineItemRow.timeline == chain.c.id)
    item = and_(ItemRow.project == TimelineItemRow.project, ItemRow.id == TimelineItemRow.item_id)
    return query.select_from(chain).outerjoin(TimelineItemRow, placed).outerjoin(ItemRow, item)


def _link(first: Row[Any], rows: Sequence[Row[Any]]) -> Link:
    """A link whose items are in the rows."""
    return Link(
        id=first.id,
        previous_id=first.previous_id,
        conversation_id=first.conversation_id,
        conversation_end=first.conversation_end,
        is_compacted=bool(first.is_compacted),
        items=[
            TimelineItem(row.position, item_from_row(row.ItemRow))
            for row in rows
            if row.ItemRow is not None
        ],
    )


def _values(response: Response) -> dict[str, Any]:
    settings = response.settings
    return {
        **{name: getattr(response, name) for name in _AS_THEY_ARE},
        "settings": _SETTINGS.dump_json(replace(settings, options=b"")),
        "options": settings.options,
        "effective_options": response.options,
        "state": response.state.value,
        "work": _WORK.dump_json(response.work),
        "ending": _ENDING.dump_json(response.ended),
    }


def _response(row: ResponseRow) -> Response:
    return Response(
        **{name: getattr(row, name) for name in _AS_THEY_ARE},
        settings=replace(_SETTINGS.validate_json(row.settings), options=row.options),
        options=row.effective_options,
        state=ResponseState(row.state),
        work=_WORK.validate_json(row.work),
        ended=_ENDING.validate_json(row.ending),
    )
