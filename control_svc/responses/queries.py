"""Table and SQL of responses."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import orjson
import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.orm import Mapped, aliased, mapped_column
from sqlalchemy.sql import ColumnElement, FromClause

from control_svc.agent.model import Work
from control_svc.base.ids import RESPONSE, is_id
from control_svc.base.object_queries import ObjectQueries
from control_svc.db.documents import Document, document_size
from control_svc.db.tables import Instant, Key, ObjectRow, read_row, row_values
from control_svc.db.transaction import CrossProjectQueries
from control_svc.event_log.queries import StreamQueries
from control_svc.inference.generation_options import NO_OPTIONS, GenerationOptions
from control_svc.items.model import CallPart, TimelineItem
from control_svc.items.queries import (
    ItemRow,
    TimelineItemRow,
    TimelineQueries,
    item_from_row,
    read_call_parts,
)
from control_svc.responses.model import (
    ChainLink,
    ExpiredResponse,
    Response,
    ResponseResult,
    ResponseSettings,
    ResponseState,
)
from svc_kit.errors import DomainError, ResponseNotFound


class ResponseRow(ObjectRow):
    """A response. Its own items are in the timeline with its id, its events in the stream."""

    __tablename__ = "responses"
    __table_args__ = (sa.Index(None, "project", "previous_id"), sa.Index(None, "expires_at"))

    # as requested
    settings: Mapped[Document]
    options: Mapped[bytes] = mapped_column(sa.LargeBinary)
    # as in effect
    model: Mapped[str] = mapped_column(sa.Text)
    effective_options: Mapped[bytes] = mapped_column(sa.LargeBinary)
    seed: Mapped[int] = mapped_column(sa.BigInteger)
    # history; no foreign keys, because a response outlives the objects that it continues
    previous_id: Mapped[str] = mapped_column(Key)
    conversation_id: Mapped[str] = mapped_column(Key)
    conversation_end: Mapped[int] = mapped_column(sa.BigInteger)
    context_start: Mapped[str] = mapped_column(Key)
    is_compacted: Mapped[bool] = mapped_column(sa.Boolean)
    state: Mapped[str] = mapped_column(sa.String(16))
    ignored_parameters: Mapped[str] = mapped_column(sa.Text, server_default=sa.text("'[]'"))  # JSON
    work: Mapped[Document]
    ending: Mapped[Document]
    created_at: Mapped[datetime] = mapped_column(Instant)
    completed_at: Mapped[datetime | None] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant)


_SETTINGS: Final = TypeAdapter(ResponseSettings)
_WORK: Final = TypeAdapter(Work)
_ENDING: Final = TypeAdapter(ResponseResult)
_FINAL: Final = [state.value for state in ResponseState if state.is_final]
_ZERO: Final[ColumnElement[int]] = sa.literal(0)
_IS_START: Final = sa.and_(
    ResponseRow.conversation_id == "",
    sa.or_(ResponseRow.previous_id == "", ResponseRow.is_compacted),
)


class ResponseQueries(ObjectQueries[ResponseRow, Response]):
    """Responses in one transaction. They are read without their output."""

    table = ResponseRow
    prefix = RESPONSE

    async def delete(self, object_id: str) -> None:
        """Delete a response, its stream, and its items unless other timelines have them."""
        await TimelineQueries(self._tx).delete(object_id)
        await StreamQueries(self._tx).drop(object_id)
        await super().delete(object_id)

    async def chain(self, response_id: str) -> list[ChainLink]:
        """Return the responses up to this one with their items, oldest first, by one query.

        The first link continues no response, or a deleted one, or is compacted. Empty if the
        response does not exist.
        """
        if not is_id(response_id, RESPONSE):
            return []  # a database may reject the characters of a malformed id
        chain = self._chain(response_id)
        placed = TimelineItemRow.position, TimelineItemRow.origin
        query = self._join_items(sa.select(chain, *placed, ItemRow), chain)
        query = query.order_by(chain.c.depth.desc(), TimelineItemRow.position)
        rows = await self._session.execute(query)
        links = [list(group) for _, group in groupby(rows, key=lambda row: row.depth)]
        return [_link(group[0], group) for group in links]

    async def start(self, response_id: str) -> ChainLink | None:
        """Return the first link of `chain` without its items."""
        if not is_id(response_id, RESPONSE):
            return None
        chain = self._chain(response_id)
        result = await self._session.execute(
            sa.select(chain).order_by(chain.c.depth.desc()).limit(1)
        )
        row = result.first()
        return None if row is None else _link(row, [])

    async def num_chain_bytes(self, response_id: str) -> int:
        """Return the total size of the items of `chain`, computed by the database."""
        if not is_id(response_id, RESPONSE):
            return 0
        chain = self._chain(response_id)
        size = document_size(ItemRow.document, self._session)
        query = self._join_items(sa.select(sa.func.sum(size)), chain)
        return (await self._session.execute(query)).scalar_one() or 0

    async def later_approvals(self, response_id: str) -> list[CallPart]:
        """Read MCP calls, and approvals in progress, of responses that continue this one."""
        query = sa.select(ResponseRow.id, ResponseRow.state)
        query = query.where(self._mine(ResponseRow), ResponseRow.previous_id == response_id)
        later = query.subquery()
        is_call = TimelineItemRow.kind == "mcp_call"
        is_approval = TimelineItemRow.kind == "mcp_approval_response"
        items = self._join_items(sa.select(ItemRow), later).where(
            sa.or_(is_call, sa.and_(is_approval, later.c.state.not_in(_FINAL)))
        )
        return await read_call_parts(items, self._session)

    async def is_continued(self, response_id: str) -> bool:
        query = sa.select(ResponseRow.id).where(
            self._mine(ResponseRow), ResponseRow.previous_id == response_id
        )
        return (await self._session.scalars(query.limit(1))).first() is not None

    def _chain(self, response_id: str) -> sa.CTE:
        """Select the links of a chain: the last response has depth 0, its predecessor 1."""
        columns = (
            ResponseRow.id,
            ResponseRow.previous_id,
            ResponseRow.conversation_id,
            ResponseRow.conversation_end,
            ResponseRow.is_compacted,
        )
        is_mine = self._mine(ResponseRow)
        last = sa.select(*columns, _ZERO.label("depth")).where(
            is_mine, ResponseRow.id == response_id
        )
        chain = last.cte("chain", recursive=True)
        return chain.union_all(
            sa.select(*columns, chain.c.depth + 1)
            .join(chain, ResponseRow.id == chain.c.previous_id)
            .where(is_mine, ~chain.c.is_compacted.cast(sa.Boolean))
        )

    def _join_items(self, query: Any, responses: FromClause) -> Any:
        """Outer-join the items of responses."""
        row = TimelineItemRow
        placed = sa.and_(self._mine(row), row.timeline == responses.c.id)
        item = sa.and_(ItemRow.project == row.project, ItemRow.id == row.item_id)
        return query.select_from(responses).outerjoin(row, placed).outerjoin(ItemRow, item)

    def _not_found(self, object_id: str) -> DomainError:
        return ResponseNotFound(response=object_id)

    def _values(self, value: Response) -> dict[str, Any]:
        settings = value.settings
        return row_values(ResponseRow, value) | {
            "settings": _SETTINGS.dump_json(replace(settings, options=NO_OPTIONS)),
            "options": bytes(settings.options),
            "effective_options": bytes(value.options),
            "ignored_parameters": orjson.dumps(value.ignored_parameters).decode(),
            "work": _WORK.dump_json(value.work),
            "ending": _ENDING.dump_json(value.result),
        }

    def _object(self, row: ResponseRow) -> Response:
        settings = _SETTINGS.validate_json(row.settings)
        return read_row(
            Response,
            row,
            settings=replace(settings, options=GenerationOptions.from_bytes(row.options)),
            options=GenerationOptions.from_bytes(row.effective_options),
            state=ResponseState(row.state),
            ignored_parameters=tuple(orjson.loads(row.ignored_parameters)),
            work=_WORK.validate_json(row.work),
            result=_ENDING.validate_json(row.ending),
        )


class ResponseSweepQueries(CrossProjectQueries):
    """The responses of all projects, for the sweeper."""

    async def delete_expired(self, now: datetime, limit: int) -> list[ExpiredResponse]:
        """Delete expired responses that no other response continues."""
        later = aliased(ResponseRow)
        is_continued = sa.exists().where(
            later.project == ResponseRow.project, later.previous_id == ResponseRow.id
        )
        rows = await self._session.execute(
            sa.select(ResponseRow.project, ResponseRow.id, _IS_START)
            .where(ResponseRow.expires_at <= now, ResponseRow.state.in_(_FINAL), ~is_continued)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        expired = [ExpiredResponse(*row) for row in rows]
        for response in expired:
            await ResponseQueries(self._tx.of(response.project)).delete(response.id)
        return expired


def _link(first: sa.Row[Any], rows: Sequence[sa.Row[Any]]) -> ChainLink:
    return ChainLink(
        id=first.id,
        previous_id=first.previous_id,
        conversation_id=first.conversation_id,
        conversation_end=first.conversation_end,
        is_compacted=bool(first.is_compacted),
        items=[
            TimelineItem(row.position, item_from_row(row.ItemRow, row.origin))
            for row in rows
            if row.ItemRow is not None
        ],
    )
