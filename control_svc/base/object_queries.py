"""The SQL that the objects of all slices share: rows that are keyed by project and id."""

from abc import abstractmethod
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from sqlalchemy.sql import ColumnElement

from control_svc.base.ids import is_id
from control_svc.base.pagination import Window, apply_window, restore_order
from control_svc.db.tables import ObjectRow
from control_svc.db.transaction import Queries
from svc_kit.errors import DomainError


class _Object(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> datetime: ...


RowT = TypeVar("RowT", bound=ObjectRow)
ObjectT = TypeVar("ObjectT", bound=_Object)


class ObjectQueries(Queries, Generic[RowT, ObjectT]):
    """Objects of a table in one transaction.

    A subclass defines the table and how a row is converted to an object and back.
    """

    table: type[RowT]
    prefix: ClassVar[str]
    """The prefix of the ids."""

    @abstractmethod
    def _not_found(self, object_id: str) -> DomainError:
        """The error of `get` and `lock`."""

    @abstractmethod
    def _object(self, row: RowT) -> ObjectT:
        """Convert a row."""

    @abstractmethod
    def _values(self, value: ObjectT) -> dict[str, Any]:
        """The columns that updates write."""

    def _constants(self, value: ObjectT) -> dict[str, Any]:
        """The columns that only `add` writes, except for the project."""
        return {"id": value.id, "created_at": value.created_at}

    async def add(self, value: ObjectT) -> None:
        values = self._constants(value) | self._values(value)
        await self._insert(self.table, values)

    async def get(self, object_id: str) -> ObjectT:
        """Return an object. Raises the NotFound error of its type."""
        return await self._get(object_id, locked=False)

    async def lock(self, object_id: str) -> ObjectT:
        """Like `get`, and lock the row until the end of the transaction."""
        return await self._get(object_id, locked=True)

    async def page(self, window: Window, *conditions: ColumnElement[bool]) -> list[ObjectT]:
        """Return the objects of a window that meet all conditions."""
        query = self._select(self.table, *conditions)
        rows = await self._session.scalars(apply_window(query, self.table.id, window))
        return restore_order([self._object(row) for row in rows], window)

    async def update(self, value: ObjectT) -> None:
        """Store the changed fields of a locked object."""
        update = self._update(self.table, self.table.id == value.id)
        await self._session.execute(update.values(self._values(value)))

    async def delete(self, object_id: str) -> None:
        """Delete the row of a locked object."""
        await self._session.execute(self._delete(self.table, self.table.id == object_id))

    async def _get(self, object_id: str, *, locked: bool) -> ObjectT:
        row = None
        if is_id(object_id, self.prefix):  # databases reject some characters of malformed ids
            row = await self._session.get(
                self.table,
                (self._project, object_id),
                with_for_update=locked,
                populate_existing=True,
            )
        if row is None:
            raise self._not_found(object_id)
        return self._object(row)
